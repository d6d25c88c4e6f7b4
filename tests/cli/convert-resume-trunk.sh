#!/usr/bin/env bash
# As convert-resume.sh, with the trunk quantized.
#
# labels: long
# timeout: 900
RESUME_TRUNK= exec bash "$(dirname "$0")/convert-resume.sh"

#!/usr/bin/env bash
# As convert-resume.sh, with trunk and head quantized.
#
# labels: long
# timeout: 900
RESUME_TRUNK= exec bash "$(dirname "$0")/convert-resume.sh"

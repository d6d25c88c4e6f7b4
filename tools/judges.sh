#!/bin/sh
# Other programs that judge what Kondense writes, in a folder of their own outside the repository: the Python packages
# gguf, safetensors, and llama-cpp-python, which is compiled (some minutes, once). Tests skip what is not there.
set -eu
dir=${KONDENSE_JUDGES:-${XDG_CACHE_HOME:-$HOME/.cache}/kondense-judges}
[ -x "$dir/bin/python" ] || python3 -m venv "$dir"
"$dir/bin/pip" install -q numpy gguf safetensors
if ! "$dir/bin/python" -c 'import llama_cpp' 2>/dev/null; then
    CMAKE_ARGS="-DGGML_OPENMP=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAVA_BUILD=OFF" \
        nice -n 19 "$dir/bin/pip" install -q --no-binary llama-cpp-python llama-cpp-python
fi
echo "judges in $dir: $("$dir/bin/pip" list 2>/dev/null | grep -iE '^(gguf|safetensors|llama)' | tr -s ' \n' ' ,')"

#!/usr/bin/env bash
# benchmarks/gpu.sh [--long] [--wheels DIR] [PART...]: all that needs a GPU; benchmarks/gpu.py says what that is.
# It needs no .venv: without one it takes python3, with the packages that pyproject.toml lists.
set -euo pipefail
export GPU_RESULTS=$(realpath -m "${GPU_RESULTS:-results/gpu}")
[ -z "${GPU_TEXT:-}" ] || export GPU_TEXT=$(realpath -m "$GPU_TEXT")
here=$(dirname "$(realpath "$0")")
cd "$here/.."
python=$(command -v .venv/bin/python || command -v python3)
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" benchmarks/gpu.py "$@"

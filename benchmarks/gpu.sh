#!/usr/bin/env bash
# All benchmarks, and training, on a machine with a GPU and no network. docs/gpu.md explains it.
#
#     ARCHIVE=cifar-10-binary.tar.gz TIME_LIMIT=3000 bash benchmarks/gpu.sh
#
# The same command again goes on with training where the time limit stopped it. TINY=1 goes through all of it in
# minutes on a processor, on digits, and measures nothing of interest. Relative paths are those of the checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
STAGES=${STAGES:-install data benchmarks train report}
OUT=${OUT:-out}                 # JSON files, tables, figures
RUNS=${RUNS:-$OUT/runs}         # run directories; keep them to go on in a later call
WHEELS=${WHEELS:-wheels}        # packages that the machine lacks
ARCHIVE=${ARCHIVE:-}            # of CIFAR-10; not needed where it is prepared in DATA_DIR
DATA_DIR=${DATA_DIR:-$OUT/data}
TINY=${TINY:-}
DTYPE=${DTYPE:-bfloat16}        # of training, and of the second half of the benchmarks
CONFIGS=${CONFIGS:-${TINY:+digits}}
CONFIGS=${CONFIGS:-quadratic}   # such as "quadratic learned_rel resnet18"
TIME_LIMIT=${TIME_LIMIT:-3000}  # seconds of training, each configuration
ARGS=${ARGS:-${TINY:+--config.train.num_epochs=2 --config.train.log_every_steps=20}} # of train.py

if [ -n "$TINY" ]; then
    small=(--num_layers 1 --batch_size 2 --repeats 1 --set model.hidden_size=8 model.intermediate_size=8)
    compare=(--encodings quadratic --image_sizes 8 "${small[@]}")
    scale=(--sides 2 4 --forward 8 --implementations factorised "${small[@]}")
else
    compare=(--image_sizes 32 64 --batch_size 100 --steps 10 --compile)
    scale=(--sides 16 32 64 128 --implementations factorised dense blocked --dense_up_to 64 --blocked_up_to 64 --batch_size 8)
fi

export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$OUT" "$RUNS"
# More words than one on purpose: both are lists.
read -ra configs <<<"$CONFIGS"
read -ra arguments <<<"$ARGS"

install() {
    if ! "$PYTHON" -c 'import attn_cnn_jax.cli.figures, tensorflow_datasets'; then
        "$PYTHON" -m pip install --no-index --find-links "$WHEELS" attn-cnn-jax
    fi
    "$PYTHON" -c 'import jax; print("JAX", jax.__version__, "on", jax.devices())'
}

data() {
    [ -n "$TINY" ] || "$PYTHON" -m attn_cnn_jax prepare cifar10 ${ARCHIVE:+--archive "$ARCHIVE"} \
        --data-dir "$DATA_DIR"
}

# measure NAME ARGUMENT...: a benchmark, its table and its JSON file under that name.
measure() {
    local name=$1
    shift
    echo "== $name: python -m benchmarks.$*"
    "$PYTHON" -m "benchmarks.$1" "${@:2}" --json "$OUT/$name.json" | tee "$OUT/$name.txt"
}

benchmarks() {
    local dtype
    for dtype in float32 "$DTYPE"; do
        measure "train_step_$dtype" train_step "${compare[@]}" --dtype "$dtype"
        measure "inference_$dtype" inference "${compare[@]}" --dtype "$dtype"
    done
    measure scaling scaling "${scale[@]}"
}

train() {
    local config status
    for config in "${configs[@]}"; do
        status=0
        # On SIGTERM train.py saves, and the same command goes on from there; `timeout` then ends with 124.
        timeout -s TERM -k 120 "$TIME_LIMIT" "$PYTHON" train.py --config="configs/$config.py" --workdir="$RUNS/$config" \
            --config.dataset.data_dir="$DATA_DIR" --config.model.dtype="$DTYPE" \
            ${arguments[@]+"${arguments[@]}"} || status=$?
        [ "$status" = 0 ] || [ "$status" = 124 ] || return "$status"
    done
}

report() {
    local config runs=()
    for config in "${configs[@]}"; do
        "$PYTHON" -m attn_cnn_jax figures "$RUNS/$config" --out "$OUT/figures/$config"
        runs+=("$RUNS/$config")
    done
    "$PYTHON" -m benchmarks.results "${runs[@]}" --out "$OUT/figures" --json "$OUT/results.json" |
        tee "$OUT/results.txt"
}

for stage in $STAGES; do
    case $stage in
        install | data | benchmarks | train | report) "$stage" ;;
        *) echo "STAGES: $stage is none of install, data, benchmarks, train, report" >&2 && exit 2 ;;
    esac
done

#!/usr/bin/env bash
# Training steps, inference, scaling, and training of all networks, on a machine with a GPU and no network. docs/gpu.md explains it.
#
#     ARCHIVE=cifar-10-binary.tar.gz TIME_LIMIT=3000 bash benchmarks/gpu.sh
#
# The same command again goes on where it was interrupted or where the time limit stopped it; what is trained to the end
# is not trained again. TINY=1 goes through all of it in minutes on a processor, on digits, and measures nothing of
# interest. Relative paths are those of the checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
STAGES=${STAGES:-install data benchmarks estimates train report}
OUT=${OUT:-out}                 # JSON files, tables, figures
RUNS=${RUNS:-$OUT/runs}         # run directories; keep them to go on in a later call
WHEELS=${WHEELS:-wheels}        # packages that the machine lacks
ARCHIVE=${ARCHIVE:-}            # of CIFAR-10; not needed where it is prepared in DATA_DIR
DATA_DIR=${DATA_DIR:-$OUT/data}
TINY=${TINY:-}
DTYPE=${DTYPE:-bfloat16}        # of training, and of the second half of the benchmarks
# Table 1 and the figures of the appendix; a run that starts from another one comes after it
CONFIGS=${CONFIGS:-resnet18 quadratic learned_rel learned_rel_content quadratic_generalized quadratic_generalized_pruned many_heads}
SEEDS=${SEEDS:-}                # such as "0 1 2": one run per configuration and seed; seed 0 without
TARGET=${TARGET:-h100}          # whose estimate stands beside what is measured, see docs/compile.md
TIME_LIMIT=${TIME_LIMIT:-3000}  # seconds of training, each run
ARGS=${ARGS:-}                  # of train.py

if [ -n "$TINY" ]; then
    small=(--num_layers 1 --batch_size 2 --repeats 1 --set model.hidden_size=8 model.intermediate_size=8)
    compare=(--encodings quadratic --image_sizes 8 "${small[@]}")
    scale=(--sides 2 4 --forward 8 --implementations factorised "${small[@]}")
    network=(--config.model.num_layers=1 --config.model.hidden_size=8 --config.model.intermediate_size=8)
    digits=(--config.dataset.name=digits --config.augment.crop_padding=1 --config.train.num_epochs=1)
else
    compare=(--image_sizes 32 64 --batch_size 100 --steps 10 --compile)
    scale=(--sides 16 32 64 128 --implementations factorised dense blocked --dense_up_to 64 --blocked_up_to 64 --batch_size 8)
    network=() digits=()
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

# overrides CONFIG: what makes the network and the data of a configuration small where TINY says so.
overrides() {
    [ "$1" = resnet18 ] || printf '%s\n' ${network[@]+"${network[@]}"}
    printf '%s\n' ${digits[@]+"${digits[@]}"} --config.model.dtype="$DTYPE"
}

estimates() {
    local config
    mkdir -p "$OUT/estimates"
    for config in "${configs[@]}"; do
        mapfile -t changed < <(overrides "$config")
        "$PYTHON" -m attn_cnn_jax compile --config="$config" --for="$TARGET" "${changed[@]}" \
            ${arguments[@]+"${arguments[@]}"} --json >"$OUT/estimates/$config.json" ||
            rm "$OUT/estimates/$config.json" # without the compiler the table lacks the column
    done
}

# workdir CONFIG SEED: a run directory, below one of its configuration where there are several seeds.
workdir() {
    echo "$RUNS/$1${SEEDS:+/seed_$2}"
}

train() {
    local config seed status run base
    for seed in ${SEEDS:-0}; do
        for config in "${configs[@]}"; do
            run=$(workdir "$config" "$seed") status=0
            mapfile -t changed < <(overrides "$config")
            base=${config%_pruned}
            if [ "$base" != "$config" ]; then
                if [ ! -e "$(workdir "$base" "$seed")/finished" ]; then
                    echo "$config starts from $base, which is not trained to the end yet: left out" >&2
                    continue
                fi
                changed+=(--config.start.run="$(workdir "$base" "$seed")")
                # What is trained for a moment has no degenerate head.
                [ -z "$TINY" ] || changed+=("--config.start.heads=((1,1),)")
            fi
            # On SIGTERM train.py saves, and the same command goes on from there; `timeout` then ends with 124.
            timeout -s TERM -k 120 "$TIME_LIMIT" "$PYTHON" train.py --config="configs/$config.py" --workdir="$run" \
                --config.dataset.data_dir="$DATA_DIR" --config.seed="$seed" "${changed[@]}" \
                ${arguments[@]+"${arguments[@]}"} || status=$?
            if [ "$status" = 1 ] && [ "$base" != "$config" ]; then
                echo "$config is left out: see why above" >&2 # $base may have no degenerate head
                continue
            fi
            [ "$status" = 0 ] || [ "$status" = 124 ] || return "$status"
            [ "$status" = 124 ] || { mkdir -p "$run" && touch "$run/finished"; }
        done
    done
}

report() {
    local config seed run runs=()
    mkdir -p "$OUT/pages"
    for config in "${configs[@]}"; do
        for seed in ${SEEDS:-0}; do
            run=$(workdir "$config" "$seed")
            [ -e "$run/metrics.jsonl" ] || continue # its turn has not come
            runs+=("$run")
            "$PYTHON" -m attn_cnn_jax figures "$run" --out "$OUT/figures/$config${SEEDS:+/seed_$seed}"
            [ "$config" = resnet18 ] ||
                "$PYTHON" -m attn_cnn_jax page "$run" --out "$OUT/pages/$config${SEEDS:+_seed_$seed}.html"
        done
    done
    [ ${#runs[@]} -gt 0 ] || { echo "report: nothing in $RUNS is trained yet" >&2 && return 1; }
    # Figure 2 with all runs in it, and Table 1: runs that differ in the seed alone share a line.
    "$PYTHON" -m attn_cnn_jax compare "${runs[@]}" --out "$OUT/figures" | tee "$OUT/table_1.txt"
    "$PYTHON" -m benchmarks.results "${runs[@]}" --out "$OUT/figures" --estimates "$OUT/estimates" \
        --json "$OUT/results.json" | tee "$OUT/results.txt"
}

for stage in $STAGES; do
    case $stage in
        install | data | benchmarks | estimates | train | report) "$stage" ;;
        *) echo "STAGES: $stage is none of install, data, benchmarks, estimates, train, report" >&2 && exit 2 ;;
    esac
done

#!/bin/sh
# A run on a rented GPU whose machine has Python and JAX, and no network. Run it from a checkout.
#
#     sh benchmarks/half_hour.sh pack BUNDLE [PYTHON JAX ARCHIVE]     before, where there is a network: 3.12 0.11.2 archive
#     sh benchmarks/half_hour.sh start BUNDLE                         there: installs and checks
#     sh benchmarks/half_hour.sh train BUNDLE RUN SECONDS FLAG...     a part of a run, as pieces in RUN-pieces; again: goes on
#     sh benchmarks/half_hour.sh pieces PIECES RUN                    the pieces alone, of at most 15 MB
#     sh benchmarks/half_hour.sh back PIECES RUN                      here, or on another machine: the run of pieces
#
# ARCHIVE is a copy of CIFAR-10's archive, or "" where the data set needs none. Flags are those of attn-cnn train.
set -eu
do=$1 bundle=$2
shift 2
case $do in
pack)
    python=${1:-3.12} jax=${2:-0.11.2} archive=${3:-}
    mkdir -p "$bundle"
    # promise comes as source alone, so its wheel is built here
    python3 -m pip wheel -q --no-deps -w "$bundle/wheels" . promise==2.3
    platforms=
    for tag in 2_28 2_27 2_17 2014 1; do
        case $tag in 2_*) tag=_$tag ;; esac
        platforms="$platforms --platform manylinux${tag}_x86_64"
    done
    # shellcheck disable=SC2086
    python3 -m pip download -q -d "$bundle/wheels" --only-binary=:all: --find-links "$bundle/wheels" --python-version "$python" \
        --implementation cp $platforms "$bundle"/wheels/attn_cnn_jax-*.whl "jax==$jax"
    rm "$bundle"/wheels/jax-*.whl "$bundle"/wheels/jaxlib-*.whl # the machine's own, with CUDA, stay
    git archive -o "$bundle/checkout.tar" HEAD
    if [ -n "$archive" ]; then mkdir -p "$bundle/archive" && cp "$archive" "$bundle/archive/"; fi
    du -sh "$bundle"
    ;;
start)
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -q --no-index --find-links "$bundle/wheels" attn-cnn-jax
    for archive in "$bundle"/archive/*; do
        if [ -e "$archive" ]; then python3 -m attn_cnn_jax prepare cifar10 --archive "$archive" --data-dir "$bundle/data"; fi
    done
    python3 -c 'import jax; print(jax.__version__, jax.devices())'
    python3 -m attn_cnn_jax selftest
    ;;
train)
    run=$1 seconds=$2
    shift 2
    # It ends with its state saved; 124 says that its time was over.
    status=0
    timeout "$seconds" python3 -m attn_cnn_jax train --workdir="$run" "$@" || status=$?
    sh "$0" pieces "$run-pieces" "$run"
    exit "$status"
    ;;
pieces)
    mkdir -p "$bundle"
    rm -f "$bundle"/piece_* # of a part before; nothing else, should RUN be given first
    tar -czf "$bundle/whole" --exclude=.lock -C "$1" .
    split -a 3 -b "${PIECE:-15000000}" "$bundle/whole" "$bundle/piece_"
    rm "$bundle/whole"
    ls -l "$bundle"
    ;;
back)
    if [ -e "$1" ]; then echo "$1 is there" >&2 && exit 1; fi
    rm -rf "$1.new"
    mkdir -p "$1.new"
    # gzip's checksum fails for a piece that is missing or damaged.
    cat "$bundle"/piece_* | tar -xzf - -C "$1.new"
    mv "$1.new" "$1"
    ;;
*)
    sed -n '2,11s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac

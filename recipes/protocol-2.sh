#!/usr/bin/env bash
# The runs of protocol 2 (docs/protocol.md), made by a frozen clone with an environment of its own.
#
#   recipes/protocol-2.sh FOLDER IMAGES    build clone and environment where missing, import finished runs, go on
#   recipes/protocol-2.sh collect FOLDER   copy finished runs to results/sealed/, to be committed
#   recipes/protocol-2.sh pause FOLDER     stop both processes for a while
#   recipes/protocol-2.sh resume FOLDER
#   recipes/protocol-2.sh end FOLDER       end them; the next start goes on from their checkpoints
#   recipes/protocol-2.sh verdict FOLDER   the analysis of the seeds that are complete, at least five
#
# IMAGES is a folder train/<class>/…, test/<class>/…; FOLDER lies outside this clone. PYTHON names another interpreter.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

signal() { # signal, folder
    while read -r pid; do kill "-$1" -- "-$pid" 2>/dev/null || true; done <"$2/pids"
}

case ${1:?"see the head of this file"} in
    collect)
        mkdir -p "$here/results/sealed"
        cp -R "${2:?FOLDER}/results/sealed/." "$here/results/sealed/"
        exit ;;
    pause) signal STOP "${2:?FOLDER}"; exit ;;
    resume) signal CONT "${2:?FOLDER}"; exit ;;
    end) signal CONT "${2:?FOLDER}"; signal TERM "$2"; rm -f "$2/pids"; exit ;;
    verdict)
        cd "${2:?FOLDER}"
        NCLIB_ROOT=$PWD/clone NCLIB_RESULTS=$PWD/results NCLIB_DATA=$PWD/data venv/bin/python - <<'END'
from nclib.papers.neural_collapse.replication import TooEarly, analyse, diverged, sealed

store = sealed()
runs = {run: store.open(run).arrays for run in store.ids()}
reason = "these seeds are complete"
try:
    found = analyse(store.frame(list(runs)), runs, list(diverged(store)), reason)
except TooEarly as error:
    raise SystemExit(str(error))
print(f"DEQ against ResNet-18, seeds {found.seeds}, change with its 95 % interval:")
print(found.primary.drop(columns=["split", "seeds"]).round(1).to_string(index=False))
print(f"The claim is {found.verdict}.")
END
        exit ;;
esac

folder=$1
images=$(cd "${2:?IMAGES}" && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
if [ ! -d "$folder/clone" ]; then
    commit=41ef149ee11d1e506ed4935bfbf90889a8d40ee3 # the one that added the page and its analysis
    git clone --quiet --no-hardlinks "$here" "$folder/clone"
    git -C "$folder/clone" checkout --quiet "$commit"
fi
if [ ! -e "$folder/venv/ready" ]; then
    "${PYTHON:-python3}" -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install -q -c "$folder/clone/constraints.txt" -e "$folder/clone[companion]" torchvision
    touch "$folder/venv/ready"
fi
if [ -d "$here/results/sealed" ]; then
    mkdir -p "$folder/results/sealed"
    cp -R "$here/results/sealed/." "$folder/results/sealed/"
fi

export NCLIB_ROOT=$folder/clone NCLIB_RESULTS=$folder/results NCLIB_DATA=$folder/data
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
cd "$folder"
: >pids
for number in 1 2; do
    setsid nice -n 19 "$folder/venv/bin/python" -m nclib.papers.neural_collapse.replication "folder:$images" \
        >>"log-$number" 2>&1 </dev/null &
    echo $! >>pids
    sleep 45 # the first one takes its run
done
echo "two processes train in $folder; what they do stands in log-1 and log-2"

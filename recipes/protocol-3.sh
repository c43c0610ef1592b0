#!/usr/bin/env bash
# The runs of protocol 3 (docs/protocol-3.md), made by a frozen clone with an environment of its own.
#
#   recipes/protocol-3.sh FOLDER EXPERIMENT IMAGES [RATE]
#                                          build clone and environment where missing, import finished
#                                          runs, go on with what is missing in two processes
#   recipes/protocol-3.sh collect FOLDER   copy finished runs to results/sealed/, to be committed
#   recipes/protocol-3.sh pause FOLDER     stop both processes for a while
#   recipes/protocol-3.sh resume FOLDER
#   recipes/protocol-3.sh end FOLDER       end them; the next start goes on from their checkpoints
#
# EXPERIMENT is E1, E1-bridge, E2-pilot, E2, E2-balanced or E3. IMAGES is the image folder that the page
# names for it, train/<class>/… and test/<class>/…; RATE is the learning rate, 0.1 if left out. FOLDER lies
# outside this clone. PYTHON names another interpreter. The commit of each experiment stands below and
# on the page; COMMIT overrides it.
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
esac

folder=$1
experiment=${2:?EXPERIMENT}
images=$(cd "${3:?IMAGES}" && pwd)
rate=${4:-0.1}
commit=${COMMIT:-8eb9874a04592f6f6db8182018561b1b7c5dc6fd}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
if [ ! -d "$folder/clone" ]; then
    git clone --quiet --no-hardlinks "$here" "$folder/clone"
    git -C "$folder/clone" checkout --quiet "$commit"
fi
if [ ! -e "$folder/venv/ready" ]; then
    "${PYTHON:-python3}" -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install -q -c "$folder/clone/constraints.txt" \
        -e "$folder/clone[companion]" torchvision
    touch "$folder/venv/ready"
fi
if [ -d "$here/results/sealed" ]; then
    mkdir -p "$folder/results/sealed"
    cp -R "$here/results/sealed/." "$folder/results/sealed/"
fi

export NCLIB_ROOT=$folder/clone NCLIB_RESULTS=$folder/results NCLIB_DATA=$folder/data
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
# glibc keeps freed memory instead of giving it back to the system, and asks for large pages. Without
# that an evaluation of the network takes half as long again.
export MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1
program=(-m companion.neural_collapse.protocol3)
case $experiment in
    E1*) program=("$here/recipes/bfloat16_by_rounding.py") ;; # encoder in bfloat16
esac
cd "$folder"
: >pids
for number in 1 2; do
    # A process that the kernel kills says nothing itself; the shell around it does.
    setsid nice -n 19 bash -c '"$@" || [ $? -ne 137 ] || echo "killed, most often for want of memory"' \
        training "$folder/venv/bin/python" "${program[@]}" \
        "$experiment" "folder:$images" "$rate" >>"log-$number" 2>&1 </dev/null &
    pid=$!
    echo "$pid" >>pids
    sleep 20 # the first one takes its run
    # Linux shares the processor among sessions first, and nice counts within one alone. Each training has
    # a session of its own, so that session too gets the lowest priority, where the kernel groups them.
    if [ -e "/proc/$pid/autogroup" ]; then
        echo 19 2>/dev/null >"/proc/$pid/autogroup" || true
    fi
done
echo "two processes train in $folder; log-1 and log-2 say what they do"

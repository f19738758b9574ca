#!/bin/bash
# Trains on a TPU slice that queued resources give, and asks for another one when that is taken away:
#
#   NAME=lm-1b ZONE=us-east5-a TYPE=v5p-128 docs/launch/tpu_pod.sh --config=configs/lm_1b.py \
#     --config.data.source=/mnt/shared/data/fineweb --config.optimizer.accumulate=18 --workdir=/mnt/shared/runs/lm_1b
#
# SETUP is run on every host before each start. It leaves the repository, installed, in ~/bam_jax, mounts what all hosts share,
# and is quick where that is done. PROJECT is a Google Cloud project; INTERNAL=1 makes hosts without external addresses. Run the
# script where it can stay for days (tmux). Started again, it continues with the slice that is there.
set -u
: "${NAME:?a name for the queued resource}" "${ZONE:?}" "${TYPE:?an accelerator type, such as v5p-128}"
RUNTIME=${RUNTIME:-v2-alpha-tpuv5}
SETUP=${SETUP:-true}
WAIT=${WAIT:-30} # seconds between two looks at the queue
TPU="gcloud compute tpus"

slice() { $TPU queued-resources "$1" "$NAME" --zone="$ZONE" ${PROJECT:+--project="$PROJECT"} "${@:2}"; }
state() { slice describe --format='value(state.state)' 2>/dev/null; }
everywhere() {
    $TPU tpu-vm ssh "$NAME" --zone="$ZONE" ${PROJECT:+--project="$PROJECT"} ${INTERNAL:+--internal-ip} \
        --worker=all --command="$1"
}

# A host that shuts down sends SIGTERM to the shell too, which has to wait for the checkpoint and to say the exit code.
# The lock: where only the connection broke, the training that it left goes on, and this one waits for it to end.
train="trap : TERM; ( $SETUP ) && cd ~/bam_jax && exec 9>.lock && flock 9 && .venv/bin/python -m bam_jax.train\
$(printf ' %q' "$@"); code=\$?; echo \"exit code \$code\"; exit \$code"

log=$(mktemp)
for ((start = 1; start <= ${STARTS:-50}; start++)); do
    until [ "$(state)" = ACTIVE ]; do
        case $(state) in
        SUSPENDED | SUSPENDING | FAILED) slice delete --force --quiet ;;
        "") slice create --node-id="$NAME" --accelerator-type="$TYPE" --runtime-version="$RUNTIME" ${SPOT:+--spot} \
            ${INTERNAL:+--internal-ips} || exit 1 ;;
        esac
        sleep "$WAIT"
    done
    everywhere "$train" | tee "$log"
    status=${PIPESTATUS[0]}
    [ "$status" -eq 0 ] && exit 0
    # 75: stopped by SIGTERM, or another host was lost. No code at all: the slice went away under it.
    if grep -q 'exit code' "$log" && ! grep -q 'exit code 75$' "$log"; then
        exit "$status"
    fi
    sleep "$WAIT" # the queue is late to say that a slice is gone
done
exit 75

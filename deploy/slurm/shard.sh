#!/bin/bash
# One shard: what srun starts on each node that holds tables. What it keeps is in $REPLAY_STATE/shard-N,
# so that a job that is submitted again has the items again.
set -euo pipefail
umask 077

state="$REPLAY_STATE/shard-$SLURM_PROCID"
mkdir -p "$state"
cp "$(dirname "$0")/tables.toml" "$state/tables.toml"

# The shell becomes the server, which so gets the SIGTERM that srun passes on.
exec echoic serve --config "$state/tables.toml" --address "tcp://0.0.0.0:${REPLAY_PORT:-5555}" \
    --token-file "$ECHOIC_TOKEN_FILE" --interval 60

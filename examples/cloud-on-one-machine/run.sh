#!/usr/bin/env bash
# Kinesis, Cassandra, S3 and Spark on this machine, as spar.toml names them:  ./run.sh up | down | status [spar.toml]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
verb=${1:-}
[ -n "$verb" ] && shift
config=$here/spar.toml
if [ $# -gt 0 ] && [[ $1 != -* ]]; then config=$1; shift; fi
if [ ! -x "$root/.venv/bin/python" ]; then echo "run \`make servers S='cassandra s3 kinesis spark'\` first: it installs all that is started here" >&2; exit 1; fi
exec "$root/.venv/bin/python" "$root/tests/servers/cloud.py" "$verb" "$config" "$@"

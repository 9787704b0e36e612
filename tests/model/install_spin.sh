#!/usr/bin/env bash
# Brings Spin, where this user may install packages. Silent and harmless where it is there already.
set -euo pipefail
command -v spin >/dev/null && exit 0
[ "$(id -u)" = 0 ] || { echo "spin is missing; as root: apt-get install spin" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive
thrice=$(cd "$(dirname "$0")/../.." && pwd)/.ci/thrice
apt-get install --yes --quiet=2 spin || { "$thrice" apt-get update --quiet=2 && "$thrice" apt-get install --yes --quiet=2 spin; }

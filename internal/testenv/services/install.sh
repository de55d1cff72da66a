# Installs the packages named as arguments, without starting their services:
# the tests start servers of their own.
set -eu
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
apt="apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3"
$apt update
$apt install -y --no-install-recommends "$@"

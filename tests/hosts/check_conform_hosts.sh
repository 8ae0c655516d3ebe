#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_conform_hosts.sh: comm_ofi keeps all of the contract of dp.comm/1 when ranks are on several hosts (namespaces), where neighbours are
# never on one host; comm_shm, which ends at a host, says so there.
set -u
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
[ -f "$DP_TEST_BUILDDIR/.libs/dp_comm_ofi.so" ] || hosts_skip "this build has no comm_ofi"
suite=$DP_TEST_BUILDDIR/tests/conform/test_conform_comm
failures=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_PORT DUALPIPE_LAUNCH
DUALPIPE_OFI_PROVIDER=tcp
export DUALPIPE_OFI_PROVIDER

hosts_begin 3
MASTER_ADDR=$(hosts_address 1)
DUALPIPE_SECRET_FILE=$hosts_work/secret
export hosts_work MASTER_ADDR DUALPIPE_SECRET_FILE
# launch N COMMAND...: N ranks dealt out to the hosts; the worst of their exit statuses. Without a fork of nsenter's own, which
# stops for good when a rank stops.
cat >"$hosts_work/launch" <<'END'
#!/bin/sh
n=$1 rank=0 ranks= worst=0
shift
while [ $rank -lt "$n" ]; do
    nsenter -t "$(cat "$hosts_work/pid.$((rank % 3 + 1))")" -m -u -i -n -p --wd -F -- sh -c '"$@" & wait $!' sh \
        env RANK=$rank WORLD_SIZE="$n" LOCAL_RANK=$((rank / 3)) "$@" &
    ranks="$ranks $!"
    rank=$((rank + 1))
done
for one in $ranks; do
    wait "$one" || worst=$?
done
exit $worst
END
chmod +x "$hosts_work/launch"

conform() { # PLUGIN CASES...: exit status 0 when all pass
    "$suite" --mode processes --launch "$hosts_work/launch %d" --plugin "$@" >"$hosts_work/out" 2>&1 9>&-
}
complain() {
    echo "$*"
    cut -c 1-300 "$hosts_work/out"
    failures=$((failures + 1))
}

conform comm_ofi || complain "comm_ofi between hosts:"
grep 'comm_ofi: [0-9]* passed' "$hosts_work/out"
[ "$(grep -c '^passed .*, [2-9] processes$' "$hosts_work/out")" -ge 40 ] || complain "not the whole suite has passed"
! conform comm_shm messages_arrive_in_order_and_whole || complain "comm_shm cannot pass between hosts"
grep -q 'runs on another host than rank' "$hosts_work/out" || complain "comm_shm has to say where it ends"

hosts_end
echo "$failures failures"
[ "$failures" -eq 0 ]

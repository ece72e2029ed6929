#!/bin/sh
# What a guest needs before anything else starts.
set -eu

# Nothing is written to the disk that nobody asked for: what is not synced is
# lost when the power goes, however long ago it was written.
cd /proc/sys/vm
echo 0 >dirty_writeback_centisecs
echo 90 >dirty_ratio
echo 80 >dirty_background_ratio

for word in $(cat /proc/cmdline); do
	case $word in
	guest_name=*) name=${word#*=} ;;
	guest_ip=*) ip=${word#*=} ;;
	esac
done
hostname "$name"
mkdir -p /run/guest
printf '%s\n' "$name" >/run/guest/hostname
printf '127.0.0.1 localhost\n%s %s\n' "$ip" "$name" >/run/guest/hosts
# Nobody answers there, but CoreDNS does not start without one.
printf 'nameserver %s\n' "${ip%.*}.1" >/run/guest/resolv.conf

# This kernel's names no frequency, cores or sockets, which cadvisor reads.
{
	grep . /proc/cpuinfo | sed '/^model name/a cpu MHz\t\t: 2600.000'
	printf 'physical id\t: 0\ncore id\t\t: 0\ncpu cores\t: 1\n\n'
} >/run/guest/cpuinfo
mount --bind /run/guest/cpuinfo /proc/cpuinfo

modprobe -a overlay br_netfilter nf_conntrack ip_tables iptable_nat iptable_filter iptable_mangle \
	xt_comment xt_conntrack xt_addrtype xt_MASQUERADE xt_mark xt_statistic xt_nat xt_multiport \
	veth bridge dummy

echo 1 >/proc/sys/net/ipv4/ip_forward
ip link set lo up
ip link add eth0 type dummy
ip address add "$ip/24" dev eth0
ip link set eth0 up
# The address that programs take for the node's own.
ip route add default via "${ip%.*}.1"

# How files come in: see the agent.
mkdir -p /run/guest/exchange
mount -t hostfs -o ro,/ exchange /run/guest/exchange

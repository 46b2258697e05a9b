# A pod's sandbox: an interface, a host name and IPC of its own, which its containers share.
#   sandbox.sh NUMBER ADDRESS HOSTNAME
# Runs within unshare(1) --net --uts --ipc; process 1 is in the network with the bridge.
set -eu
hostname "$3"
ip link set lo up
ip link add eth0 type veth peer name "pod$1" netns 1
ip address add "$2/16" dev eth0
ip link set eth0 up
nsenter --target 1 --net ip link set "pod$1" master br0 up
echo
exec sleep infinity

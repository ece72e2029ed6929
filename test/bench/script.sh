#!/bin/sh
# The official steps of an upgrade, as an administrator types them, with no
# check beyond what the tools do themselves: what upgrader is measured against.
# usage: script.sh COMPONENTS VERSION NODE
set -eu
from=$1 version=$2 node=$3
export KUBECONFIG=/etc/kubernetes/admin.conf

# containerd's own instructions: stop, unpack over it, start
systemctl stop containerd
install -m 755 "$from/containerd/containerd" "$from/containerd/containerd-shim-runc-v2" "$from/containerd/ctr" /usr/local/bin/
install -m 755 "$from/runc/runc" /usr/local/sbin/runc
systemctl start containerd

for plugin in "$from"/cni-plugins/*; do install -m 755 "$plugin" /opt/cni/bin/; done

# kubernetes.io: "Upgrading kubeadm clusters"
install -m 755 "$from/kubeadm/kubeadm" /usr/bin/kubeadm
kubeadm upgrade apply "$version" --yes --ignore-preflight-errors=SystemVerification
kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data
systemctl stop kubelet
install -m 755 "$from/kubelet/kubelet" /usr/bin/kubelet
install -m 755 "$from/kubectl/kubectl" /usr/bin/kubectl
systemctl daemon-reload
systemctl start kubelet
until kubectl uncordon "$node"; do sleep 1; done
until [ "$(kubectl get node "$node" -o jsonpath='{.status.nodeInfo.kubeletVersion}{.status.conditions[?(@.type=="Ready")].status}')" = "${version}True" ]; do sleep 1; done

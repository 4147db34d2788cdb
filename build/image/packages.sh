#!/bin/sh
# Puts Debian's Open vSwitch, iptables and nftables into the image. Runs in the container of the build, as root.
set -eu
export DEBIAN_FRONTEND=noninteractive

# Documentation is not unpacked. Licences stay.
cat >/etc/dpkg/dpkg.cfg.d/fairlead <<'EOT'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/info/*
path-exclude /usr/share/lintian/*
EOT
# Debian would start Open vSwitch when it installs it.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d

apt-get update -q
apt-get install -q -y --no-install-recommends iptables nftables iproute2 kmod netbase procps uuid-runtime systemd-standalone-sysusers \
	libbpf1 libcap-ng0 libnuma1 libssl3 libunbound8 libxdp1
# Python is for scripts of Open vSwitch that nothing here calls, and a third of the image: the
# packages go in without it. Their libraries are in the line above; the check below holds that.
cd /tmp
apt-get download -q openvswitch-common openvswitch-switch
dpkg --force-depends --install openvswitch-common_*.deb openvswitch-switch_*.deb
for program in ovs-vswitchd ovsdb-server ovsdb-client ovsdb-tool ovs-vsctl ovs-ofctl ovs-appctl ovs-dpctl; do
	"$program" --version >/dev/null
done

# iptables, in whose form (nft or legacy) the node has its rules, is decided when it is called.
for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
	ln -s /usr/local/lib/fairlead/iptables "/usr/local/sbin/$name"
done
mkdir -p /usr/local/lib/cni /usr/local/lib/fairlead /usr/share/fairlead

rm -rf openvswitch-*.deb /usr/sbin/policy-rc.d /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* \
	/var/log/* /var/cache/ldconfig/* /etc/openvswitch/* /var/lib/openvswitch/*

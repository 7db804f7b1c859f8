#!/bin/sh
# Prepare a node of the Proxmox VE cluster for containers with directory logins.  Run as root on
# every node, once; again after a change of the certificate or the password.
#
#   prepare-node.sh --ca ca.pem --bind-password bind.password [--homes /mnt/pve/homes]
#
# --ca              certificate of the authority that signed the directory's certificate
# --bind-password   file with the password of the account that reads the directory (one line);
#                   left out where the directory can be read without one
# --homes           where the file server's export with the homes is mounted on the node
# --ids FIRST COUNT uids and gids of the directory (default: 600000000 999999999)
# --root UID        who the containers' root is on the node (default: 100000, as Proxmox VE has it)
set -eu
umask 077

usage() {
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '/^set/d' >&2
  exit 2
}

ca='' password='' homes='' first=600000000 count=999999999 root=100000
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case $1 in
  --ca) ca=$2 ;;
  --bind-password) password=$2 ;;
  --homes) homes=$2 ;;
  --ids)
    [ $# -ge 3 ] || usage
    first=$2 count=$3
    shift
    ;;
  --root) root=$2 ;;
  *) usage ;;
  esac
  shift 2
done
[ -n "$ca" ] || usage
[ "$(id -u)" = 0 ] || { echo "prepare-node.sh: run it as root" >&2; exit 1; }
grep -q 'BEGIN CERTIFICATE' "$ca" || { echo "$ca: no certificate in PEM format" >&2; exit 1; }

# 1. Root may map these ids into containers: the default of Proxmox VE, and those of the directory.
for file in /etc/subuid /etc/subgid; do
  for line in "root:$root:65536" "root:$first:$count"; do
    grep -qxF "$line" "$file" 2>/dev/null || echo "$line" >>"$file"
  done
  chmod 644 "$file"
done

# 2. The files the mount hook copies.  It runs as the containers' root, which is not root here:
# so they belong to that uid, and nobody else can read them.  /etc/pve would not do: its files
# cannot be given to another owner.
mkdir -p /etc/essaim/directory
chmod 755 /etc/essaim
install -m 400 -o "$root" -g "$root" "$ca" /etc/essaim/directory/ca.pem
if [ -n "$password" ]; then
  [ -s "$password" ] || { echo "$password: empty" >&2; exit 1; }
  install -m 400 -o "$root" -g "$root" "$password" /etc/essaim/directory/bind.password
fi
chown "$root:$root" /etc/essaim/directory
chmod 500 /etc/essaim/directory

# 3. The homes.  They are made on the file server, each with its owner's uid.
if [ -n "$homes" ] && ! mountpoint -q "$homes"; then
  echo "warning: $homes is not mounted; add the export as a storage:" >&2
  echo "  pvesm add nfs ${homes##*/} --server FILESERVER --export /export/home --content snippets" >&2
fi
echo "node $(hostname): ready for directory logins"

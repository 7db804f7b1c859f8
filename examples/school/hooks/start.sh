#!/bin/sh
# Start hook (lxc.hook.start): joins the container to the school's directory.  It runs inside the
# container, before its init, at every start; so it must be safe to repeat, quick, and independent
# of the network, which init brings up.
#
# If it fails the container does not start.  That is meant: a machine that came up half set up
# would let in nobody, or anybody.
#
# Values come from Essaim: the labels of the machine (ESSAIM_LOGIN, ESSAIM_UID, ESSAIM_HOME), and
# `extras.values` of the image (ESSAIM_DIRECTORY_…).  The certificate and the password of the bind
# account were copied from the node by mount.sh.  Nothing secret is in this file.
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
umask 077

fail() {
  echo "start hook: $*" >&2
  echo "$(date -u +%FT%TZ) start hook: $*" >>/var/log/essaim-hook.log || :
  exit 1
}

# Write stdin to a file with that mode, whole or not at all.  False when it was there already.
put() {
  { cat >"$1.essaim" && chmod "$2" "$1.essaim"; } || fail "cannot write $1"
  if cmp -s "$1.essaim" "$1" && chmod "$2" "$1"; then
    rm -f "$1.essaim"
    return 1
  fi
  mv "$1.essaim" "$1" || fail "cannot write $1"
}

. "$(dirname "$0")/values"
files=/etc/essaim/directory
login=${ESSAIM_LOGIN:-}
uri=${ESSAIM_DIRECTORY_URI:-}
base=${ESSAIM_DIRECTORY_BASE:-}
bind_dn=${ESSAIM_DIRECTORY_BIND_DN:-}
schema=${ESSAIM_DIRECTORY_SCHEMA:-rfc2307}
admins=${ESSAIM_DIRECTORY_ADMINS:-}
min_id=${ESSAIM_DIRECTORY_MIN_ID:-1000}

# The login becomes part of a list of SSSD: a comma in it would let in somebody else.
case $login in
'' | *[!A-Za-z0-9._-]*) fail "'$login' cannot be the login of a directory account" ;;
esac
case $uri in
ldaps://* | ldap://*) ;;
*) fail "directory_uri of the image must begin with ldaps:// or ldap://, not '$uri'" ;;
esac
[ -n "$base" ] || fail "directory_base of the image is missing"
for program in sssd sshd pam-auth-update; do
  command -v "$program" >/dev/null ||
    fail "the template has no $program: it needs sssd-ldap libnss-sss libpam-sss openssh-server"
done
[ -s "$files/ca.pem" ] || fail "$files/ca.pem is missing: the mount hook did not run"

# 1. SSSD: who there is, and whose password is right.
#
# The certificate of the server must be signed by the CA of the school: the system's list of
# authorities is not used.  ldap:// goes on in TLS (StartTLS), or not at all.
authtok=
if [ -n "$bind_dn" ]; then
  IFS= read -r authtok <"$files/bind.password" || [ -n "$authtok" ] ||
    fail "$files/bind.password is empty"
fi
changed=no
put /etc/sssd/sssd.conf 600 <<EOF && changed=yes
# Written by the start hook at every start.
[sssd]
config_file_version = 2
services = nss, pam, ssh
domains = school

[nss]
filter_users = root
filter_groups = root

[domain/school]
id_provider = ldap
auth_provider = ldap
chpass_provider = ldap
sudo_provider = none
autofs_provider = none
ldap_uri = $uri
ldap_search_base = $base
ldap_schema = $schema
ldap_tls_cacert = $files/ca.pem
ldap_tls_reqcert = demand
ldap_id_use_start_tls = $(case $uri in ldap://*) echo true ;; *) echo false ;; esac)
${bind_dn:+ldap_default_bind_dn = $bind_dn}
${authtok:+ldap_default_authtok = $authtok}
# An entry with a small uid would be root here, or a daemon.
min_id = $min_id
default_shell = /bin/bash
# Passwords are not kept on a machine whose disk somebody else may read.
cache_credentials = false
# 2. Who may log in, by password, by key or otherwise: the student whose machine it is, and the
# administrators.  Everybody else of the directory exists here, and is refused.
access_provider = simple
simple_allow_users = $login
${admins:+simple_allow_groups = $admins}
EOF
# What a clone remembers of the directory is the template's, or of before the change.
if [ "$changed" = yes ]; then rm -f /var/lib/sss/db/*.ldb /var/lib/sss/mc/*; fi

# 3. The system asks SSSD for people and groups.
for database in passwd group shadow; do
  grep -q "^$database:.*[[:space:]]sss" /etc/nsswitch.conf ||
    sed -i "s/^$database:.*/& sss/" /etc/nsswitch.conf
done

# 4. PAM asks SSSD for passwords and permissions, and makes the home of an administrator who
# has none here.
uses() { grep -Eq "^[^#]*[[:space:]]$2\\.so" "/etc/pam.d/common-$1"; }
if ! uses auth pam_sss || ! uses account pam_sss || ! uses session pam_mkhomedir; then
  DEBIAN_FRONTEND=noninteractive pam-auth-update --enable sss mkhomedir </dev/null >/dev/null ||
    fail "pam-auth-update failed"
fi
for file in auth account; do
  uses "$file" pam_sss ||
    fail "/etc/pam.d/common-$file was changed by hand and does not ask SSSD (pam_sss.so)"
done

# 5. SSH: passwords of the directory, keys from the home, from Essaim and from the directory.
# Whichever it is, PAM's account phase applies the rule of 2.
mkdir -p /etc/ssh/sshd_config.d
put /etc/ssh/sshd_config.d/10-essaim-directory.conf 644 <<EOF || :
# Written by the start hook at every start.
UsePAM yes
PasswordAuthentication yes
PermitEmptyPasswords no
PermitRootLogin prohibit-password
PubkeyAuthentication yes
AuthorizedKeysFile .ssh/authorized_keys /etc/ssh/authorized_keys.d/%u
AuthorizedKeysCommand /usr/bin/sss_ssh_authorizedkeys %u
AuthorizedKeysCommandUser nobody
EOF

# 6. The home: mounted by the node, with the uid of the directory.  An id that is not mapped shows
# as nobody, and the student could not write.
if [ -n "${ESSAIM_HOME:-}" ] && [ -n "${ESSAIM_UID:-}" ] && [ -d "$ESSAIM_HOME" ]; then
  owner=$(stat -c %u "$ESSAIM_HOME")
  [ "$owner" = "$ESSAIM_UID" ] ||
    fail "$ESSAIM_HOME belongs to uid $owner, not to $ESSAIM_UID: see idmap of the image, \
/etc/subuid and /etc/subgid of the node, and who owns the directory on the file server"
fi

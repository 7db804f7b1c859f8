# Mount hook (lxc.hook.mount): copies what the container needs from the node into its root file
# system.  Essaim's own mount hook sources this file; `set -eu` is in force, the labels of the
# machine are there as ESSAIM_LOGIN, ESSAIM_UID, ESSAIM_HOME, …, and so is `put`.
#
# It runs on the node, but in the container's user namespace: as the node's uid 100000, not as root.
# So the files below belong to that uid (prepare-node.sh sees to it), and nothing else of the node
# can be read from here.
#
# The container's root file system is the student's to change.  A link they left in it would lead
# out of the container from here.  So write there with `put PATH MODE [MODE OF ITS FOLDER] <FILE`
# only, which follows none, also if one appears meanwhile; never with `>`, cp or mkdir.

source=${ESSAIM_DIRECTORY_FILES:-/etc/essaim/directory}

for file in ca.pem bind.password; do
  if [ ! -r "$source/$file" ]; then
    # A directory that can be read without a password needs none.
    if [ "$file" = bind.password ] && [ -z "${ESSAIM_DIRECTORY_BIND_DN:-}" ]; then continue; fi
    echo "mount hook: cannot read $source/$file on this node: run prepare-node.sh here first" >&2
    exit 1
  fi
  put "etc/essaim/directory/$file" 600 700 <"$source/$file"
done

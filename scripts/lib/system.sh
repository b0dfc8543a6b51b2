# shellcheck shell=bash disable=SC2154
# Sourced, after environment.sh, by what works in a Debian of its own: a folder that debootstrap fills.
#
#   system   that folder
#   shared   a folder of this machine that is seen in there too, or empty

# make_debian SUITE [MIRROR]: without a MIRROR, debootstrap's own.
make_debian() {
  rm -rf "${system:?}"
  debootstrap --variant=minbase "$1" "$system" ${2:+"$2"}
}

# in_system COMMAND...: with none of the caller's variables but pip's. The mounts are in a namespace of
# their own, and end with the command.
in_system() {
  local name variables=()
  for name in "${!PIP_@}"; do variables+=("$name=${!name}"); done
  cp /etc/resolv.conf "$system/etc/resolv.conf"
  # What the caller trusts, such as a proxy's certificate.
  mkdir -p "$system/etc/ssl/certs"
  cp /etc/ssl/certs/ca-certificates.crt "$system/etc/ssl/certs/"
  # shellcheck disable=SC2016  # for the inner shell
  unshare --mount bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    if [ -d "$2" ]; then mkdir -p "$1$2" && mount --bind "$2" "$1$2"; fi
    exec chroot "$1" "${@:3}"' in_system "$system" "${shared:-}" \
    env -i HOME=/root LANG=C.UTF-8 TERM=dumb DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt "${variables[@]}" "$@"
}

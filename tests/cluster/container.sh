# One container: a root, process ids, /tmp and /dev of its own; it ends as its command does.
#   container.sh DIRECTORY UID GID GROUPS read-only|writable MOUNTS -- COMMAND...
# MOUNTS is a file of lines: SOURCE<tab>TARGET<tab>ro|rw.  The root is a layer over the machine's.
# Runs as process 1 of namespaces for mounts and processes, in the sandbox of its pod.
set -eu
dir=$1 user=$2 group=$3 groups=$4 mode=$5 mounts=$6
shift 7
root=$dir/root
mount --make-rprivate /
mkdir -p "$dir/layer" "$root"
mount -t tmpfs -o size=256m layer "$dir/layer"
mkdir "$dir/layer/upper" "$dir/layer/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/layer/upper,workdir=$dir/layer/work" "$root"
[ ! -d "$root/root" ] || chmod 755 "$root/root"     # where the interpreter may lie
rm -f "$root/etc/resolv.conf"
: > "$root/etc/resolv.conf"                         # names are in /etc/hosts, or nowhere
mount -t tmpfs -o mode=1777,size=256m tmp "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
for each in full null random tty urandom zero; do
    : > "$root/dev/$each"
    mount --bind "/dev/$each" "$root/dev/$each"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm"
mount -t tmpfs -o mode=1777,size=64m shm "$root/dev/shm"   # as much as container runtimes give
tab=$(printf '\t') tmp=root
while IFS=$tab read -r source target access; do
    [ "$target" != /tmp ] || tmp=volume
    if [ -d "$source" ]; then
        chroot "$root" mkdir -p "$target"
    else
        chroot "$root" sh -c 'mkdir -p "${0%/*}" && : >> "$0"' "$target"
    fi
    target=$root$(chroot "$root" readlink -f "$target")    # /var/run is a link, which leads outside
    mount --bind "$source" "$target"
    [ "$access" = rw ] || mount -o remount,bind,ro "$target"
done < "$mounts"
if [ "$mode" = read-only ]; then
    mount -o remount,bind,ro "$root"
    [ $tmp = volume ] || mount -o remount,bind,ro "$root/tmp"
fi
[ "$user" = 0 ] && exec chroot "$root" "$@"
exec chroot "$root" setpriv --reuid "$user" --regid "$group" --groups "$groups" --no-new-privs \
    --inh-caps=-all --bounding-set=-all -- "$@"

package sqlite

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// networkMagic are the statfs types of file systems that other machines write to.
var networkMagic = map[uint32]string{
	0x00006969: "nfs",
	0xFF534D42: "cifs",
	0xFE534D42: "smb2",
	0x0000517B: "smb",
	0x0000564C: "ncp",
	0x5346414F: "afs",
	0x6B414653: "kafs",
	0x73757245: "coda",
	0x00C36400: "ceph",
	0x0BD00BD0: "lustre",
	0x47504653: "gpfs",
	0x19830326: "beegfs",
	0x7461636F: "ocfs2",
	0x01161970: "gfs2",
	0xAAD7AAEA: "panfs",
	0x786F4256: "vboxsf",
	0x013111A8: "ibrix",
}

const fuseMagic = 0x65735546

// networkFUSE are the FUSE file systems known to be remote. Others (mergerfs,
// gocryptfs, virtual disks) lie on a local one.
var networkFUSE = []string{
	"sshfs", "glusterfs", "ceph", "s3fs", "s3ql", "goofys", "geesefs", "gcsfuse", "blobfuse", "rclone",
	"davfs", "curlftpfs", "smbnetfs", "moosefs", "mfs", "lizardfs", "juicefs", "seaweedfs", "weed", "mount-s3", "mountpoint-s3",
}

// networkFileSystem names the network file system that dir is on, "" where it
// is on none, or that cannot be told.
func networkFileSystem(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return ""
	}
	return networkName(uint32(st.Type), func() string { return mountType(dir) }) // 32 bits by definition
}

func networkName(magic uint32, mountType func() string) string {
	if name, ok := networkMagic[magic]; ok {
		return name
	}
	if magic != fuseMagic {
		return ""
	}
	typ := mountType()
	for _, name := range networkFUSE {
		if strings.Contains(strings.ToLower(typ), name) {
			return typ
		}
	}
	return ""
}

// mountType is the type and the source in the line of /proc/self/mountinfo that
// describes the mount dir is on: "fuse.sshfs user@host:/dir".
func mountType(dir string) string {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return ""
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		mount, fs, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(mount)
		if ok && len(fields) > 2 && fields[2] == device {
			typ, _, _ := strings.Cut(fs, " ")
			return typ
		}
	}
	return ""
}

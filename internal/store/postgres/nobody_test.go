//go:build unix

package postgres

import (
	"os"
	"os/exec"
	"syscall"
)

// asNobody drops root's rights, which some servers refuse to run with.
func asNobody(cmd *exec.Cmd) {
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
}

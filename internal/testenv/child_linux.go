package testenv

import "syscall"

// dieWithParent has the kernel end the server when this process dies without
// stopping it, killed or timed out.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

package main

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/inboxd/inboxd/internal/testenv"
)

//go:embed install.sh
var installScript string

// install installs the servers that are needed and missing.
func (s *services) install() error {
	packages := s.missing()
	if len(packages) == 0 {
		return nil
	}
	remedy := fmt.Sprintf("install %s yourself, or set %s and %s to servers that run",
		strings.Join(packages, " and "), testenv.AMQPVar, testenv.DatabaseVar)
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("cannot install %s: no apt-get here; %s", strings.Join(packages, ", "), remedy)
	}
	command := []string{"sh", "-c", installScript, "install"}
	if os.Geteuid() != 0 {
		// -n: never ask for a password; nobody may be there to type it.
		command = append([]string{"sudo", "-n"}, command...)
	}
	fmt.Fprintf(s.stderr, "services: installing %s (this takes a minute or two)\n", strings.Join(packages, ", "))
	cmd := exec.Command(command[0], append(command[1:], packages...)...)
	cmd.Stdout, cmd.Stderr = s.stderr, s.stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("installing %s: %w; %s", strings.Join(packages, ", "), err, remedy)
	}
	if still := s.missing(); len(still) > 0 {
		return fmt.Errorf("%s: installed, but not found; %s", strings.Join(still, ", "), remedy)
	}
	return nil
}

// missing names the Debian packages of the servers that are not there.
func (s *services) missing() []string {
	var packages []string
	if _, err := testenv.RabbitBin(); errors.Is(err, testenv.ErrNotInstalled) && os.Getenv(testenv.AMQPVar) == "" {
		packages = append(packages, "rabbitmq-server")
	}
	if _, err := testenv.PostgresBin(); errors.Is(err, testenv.ErrNotInstalled) && os.Getenv(testenv.DatabaseVar) == "" && !s.rabbitOnly {
		packages = append(packages, "postgresql")
	}
	return packages
}

package testenv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrNotInstalled means that the server's programs are not on this machine.
var ErrNotInstalled = errors.New("not installed")

// Rabbit is a private RabbitMQ node. Its methods are not safe for concurrent use.
type Rabbit struct {
	URL  string // amqp://guest:guest@127.0.0.1:PORT/
	Addr string // 127.0.0.1:PORT, for a Proxy
	Log  string // path of the node's log
	Dir  string // everything of this node; removed by Stop

	bin  string
	node string
	env  []string
	epmd *child
	beam *child
}

// StartRabbit starts a node and returns when it accepts connections. The
// caller must Stop it.
func StartRabbit(o Options) (*Rabbit, error) {
	bin, err := RabbitBin()
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	if o.Port != 0 {
		ports[0] = o.Port
	}
	dir, err := os.MkdirTemp(o.Dir, "inboxd-rabbitmq-")
	if err != nil {
		return nil, err
	}
	r := &Rabbit{
		URL:  fmt.Sprintf("amqp://guest:guest@%s/", localAddr(ports[0])),
		Addr: localAddr(ports[0]),
		Log:  filepath.Join(dir, "rabbit.log"),
		Dir:  dir,
		bin:  bin,
		node: fmt.Sprintf("inboxd%d@localhost", ports[0]),
	}
	r.env = rabbitEnv(dir, r.node, ports)
	if err := r.setUp(o, ports[2]); err != nil {
		return nil, errors.Join(fmt.Errorf("starting RabbitMQ: %w", err), r.Stop())
	}
	return r, nil
}

// RabbitBin returns the directory of rabbitmq-server itself: Debian's wrapper
// in /usr/sbin changes the user, which only root may and nobody needs here.
func RabbitBin() (string, error) {
	found, _ := filepath.Glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
	candidates := append([]string{"/usr/lib/rabbitmq/bin/rabbitmq-server"}, found...)
	if path, err := exec.LookPath("rabbitmq-server"); err == nil {
		candidates = append(candidates, path)
	}
	for _, c := range candidates {
		if _, err := os.Stat(c); err == nil {
			return filepath.Dir(c), nil
		}
	}
	return "", fmt.Errorf("RabbitMQ is %w (Debian, Ubuntu: apt-get install rabbitmq-server)", ErrNotInstalled)
}

// rabbitEnv keeps the node away from any other: its own directories, Erlang
// cookie (HOME), port mapper and ports.
func rabbitEnv(dir, node string, ports []int) []string {
	env := []string{
		"HOME=" + dir,
		"ERL_CRASH_DUMP_SECONDS=0", // a dump takes long and nobody reads it
		"RABBITMQ_CONF_ENV_FILE=" + filepath.Join(dir, "rabbitmq-env.conf"), // not the system's
		"RABBITMQ_NODENAME=" + node,
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		fmt.Sprintf("RABBITMQ_NODE_PORT=%d", ports[0]),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", ports[1]),
		fmt.Sprintf("ERL_EPMD_PORT=%d", ports[2]),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "data"),
		"RABBITMQ_GENERATED_CONFIG_DIR=" + filepath.Join(dir, "config"),
		"RABBITMQ_LOG_BASE=" + dir,
		"RABBITMQ_LOGS=-",
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(dir, "rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + filepath.Join(dir, "advanced.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "enabled_plugins"),
		"RABBITMQ_PID_FILE=" + filepath.Join(dir, "pid"),
		// The start script becomes the node instead of watching over it, so
		// that the process we start is the one that we kill and freeze.
		"RUNNING_UNDER_SYSTEMD=1",
		// No busy waiting: several nodes may share two cores.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+sbwt none +sbwtdcpu none +sbwtdio none",
	}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name != "HOME" && name != "NOTIFY_SOCKET" && !strings.HasPrefix(name, "RABBITMQ_") && !strings.HasPrefix(name, "ERL_") {
			env = append(env, kv)
		}
	}
	return env
}

func (r *Rabbit) setUp(o Options, epmdPort int) error {
	advanced := o.Advanced
	if advanced == "" {
		advanced = "[]."
	}
	files := map[string]string{
		"rabbitmq.conf":     "disk_free_limit.absolute = 50MB\nlog.console.level = info\n" + o.Config + "\n",
		"advanced.config":   advanced + "\n",
		"enabled_plugins":   "[].\n",
		"rabbitmq-env.conf": "",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(r.Dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	path, err := exec.LookPath("epmd")
	if err != nil {
		return fmt.Errorf("finding Erlang's epmd: %w", err)
	}
	// Ours and in the foreground: the one that Erlang starts by itself would
	// outlive the node.
	epmd := exec.Command(path, "-port", fmt.Sprint(epmdPort), "-address", "127.0.0.1")
	epmd.Env = r.env
	if r.epmd, err = startChild(epmd, filepath.Join(r.Dir, "epmd.log")); err != nil {
		return fmt.Errorf("starting epmd: %w", err)
	}
	if err := r.epmd.awaitReady(filepath.Join(r.Dir, "epmd.log"), func() error { return dialable(epmdPort) }); err != nil {
		return fmt.Errorf("starting epmd: %w", err)
	}
	return r.start()
}

func (r *Rabbit) start() error {
	cmd := exec.Command(filepath.Join(r.bin, "rabbitmq-server"))
	cmd.Dir = r.Dir
	cmd.Env = r.env
	var err error
	if r.beam, err = startChild(cmd, r.Log); err != nil {
		return err
	}
	return r.beam.awaitReady(r.Log, r.tryConnect)
}

func (r *Rabbit) tryConnect() error {
	conn, err := amqp.DialConfig(r.URL, amqp.Config{Dial: amqp.DefaultDial(connectTimeout)})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Channel()
	return err
}

// Kill ends the node with SIGKILL, as a power cut would, and waits for its end.
// A quorum queue that was declared within the last two seconds or so is not
// recovered by the restart: RabbitMQ 3.10 notes new ones down with a delay,
// and the queue then stands without a leader (messages 0, basic.get 541). Use a
// classic queue, or kill later.
func (r *Rabbit) Kill() error { return r.beam.kill() }

// Restart starts the node again, on the same data and port, and returns when it
// accepts connections. A node that still runs is killed first.
func (r *Rabbit) Restart() error {
	if err := r.Kill(); err != nil {
		return err
	}
	// The port mapper drops a dead node's name by itself, a moment later.
	if err := r.start(); err != nil {
		return fmt.Errorf("restarting RabbitMQ: %w", err)
	}
	return nil
}

// Freeze stops the node with SIGSTOP: it stays connected and answers nothing.
func (r *Rabbit) Freeze() error { return r.beam.signal(syscall.SIGSTOP) }

// Thaw undoes Freeze.
func (r *Rabbit) Thaw() error { return r.beam.signal(syscall.SIGCONT) }

// Ctl runs rabbitmqctl for this node. It takes a second or two.
func (r *Rabbit) Ctl(args ...string) ([]byte, error) {
	cmd := exec.Command(filepath.Join(r.bin, "rabbitmqctl"), append([]string{"-n", r.node}, args...)...)
	cmd.Env = r.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return out, fmt.Errorf("rabbitmqctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return out, nil
}

// Stop ends the node and removes its directory. It may be called again.
func (r *Rabbit) Stop() error {
	return errors.Join(r.beam.kill(), r.epmd.kill(), os.RemoveAll(r.Dir))
}

func dialable(port int) error {
	conn, err := net.DialTimeout("tcp", localAddr(port), time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

package uml

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/node-upgrader/node-upgrader/test/uml/link"
)

const program = "/usr/bin/linux.uml"

// guest is a running kernel.
type guest struct {
	process *os.Process
	port    *os.File // this end of its serial port
	line    *link.Client
	done    chan struct{} // closed when every process of it is gone
}

func startGuest(spec Spec, d disk) (*guest, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("serial port: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "serial port")
	defer theirs.Close()
	// For the runtime's poller, so that a close ends a read.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, err
	}
	g := &guest{port: os.NewFile(uintptr(fds[0]), "serial port"), done: make(chan struct{})}
	log, err := os.Create(d.path("console.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, //nolint:noctx // a machine outlives the call that boots it
		"ubd0="+d.path("disk.cow")+","+d.Image,
		"root=/dev/ubda", "rw", "rootfstype=ext4", "rootflags=noauto_da_alloc,data=writeback,commit=300",
		fmt.Sprintf("mem=%dM", spec.Memory),
		"con=null", "con0=null,fd:1", "ssl=null", "ssl0=fd:3",
		"hostfs="+d.path("exchange"), "uml_dir="+d.path("uml"), "umid=guest",
		"quiet", "panic=-1", "noreboot", "systemd.unified_cgroup_hierarchy=1", "systemd.show_status=0",
		"guest_name="+spec.Name, "guest_ip="+spec.IP)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	started := make(chan error)
	go func() {
		// The signal comes when the thread ends that started the kernel.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // as the caller's Crash or PowerOff wants it
			close(g.done)
			g.port.Close()
		}
	}()
	if err := <-started; err != nil {
		g.port.Close()
		return nil, fmt.Errorf("start the kernel: %w", err)
	}
	g.process = cmd.Process
	g.line = link.Connect(g.port)
	return g, nil
}

func (g *guest) ended() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// endsSoon is for when the line is gone, which comes a moment before the end.
func (g *guest) endsSoon() bool {
	select {
	case <-g.done:
		return true
	case <-time.After(5 * time.Second):
		return false
	}
}

// kill is the end of the power: nothing of the guest runs any more when it
// returns.
func (g *guest) kill() {
	_ = g.process.Kill() // gone already is as well
	<-g.done
}

package hostexec_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// TestMain is also the program that enters another process's namespaces.
func TestMain(m *testing.M) {
	switch os.Getenv("ENTER_TEST") {
	case "target": // in namespaces of its own, with a host name and a mount
		if err := target(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "enter":
		pid, _ := strconv.Atoi(os.Getenv("ENTER_PID"))
		keep := os.NewFile(3, "keep")
		err := hostexec.Enter(pid, []string{"entered", "a b"}, []string{"ENTER_TEST=entered"}, keep)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case "entered":
		name, _ := os.Hostname()
		inside, _ := os.ReadFile("/tmp/only-here")
		kept, _ := io.ReadAll(os.NewFile(3, "kept"))
		fmt.Printf("%s|%s|%s|%s", name, inside, kept, strings.Join(os.Args, ","))
	default:
		os.Exit(m.Run())
	}
}

func target() error {
	if err := syscall.Sethostname([]byte("the-host")); err != nil {
		return err
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", "/tmp", "tmpfs", 0, ""); err != nil {
		return err
	}
	if err := os.WriteFile("/tmp/only-here", []byte("host file"), 0o600); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err := os.Stdin.Read(make([]byte, 1)) // until the test closes it
	if err == io.EOF {
		return nil
	}
	return err
}

func TestEnter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root; CI runs this as root")
	}
	host := exec.CommandContext(t.Context(), "/proc/self/exe")
	host.Env = []string{"ENTER_TEST=target"}
	host.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET}
	host.Stderr = os.Stderr
	in, err := host.StdinPipe()
	must(t, err)
	out, err := host.StdoutPipe()
	must(t, err)
	must(t, host.Start())
	defer func() {
		in.Close()
		_ = host.Wait()
	}()
	if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
		t.Fatalf("the target did not start: %v", err)
	}

	bundle := t.TempDir() + "/bundle.json"
	must(t, os.WriteFile(bundle, []byte("of the image"), 0o600))
	f, err := os.Open(bundle)
	must(t, err)
	defer f.Close()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = []string{"ENTER_TEST=enter", fmt.Sprint("ENTER_PID=", host.Process.Pid)}
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = os.Stderr
	got, err := cmd.Output()
	must(t, err)
	if want := "the-host|host file|of the image|entered,a b"; string(got) != want {
		t.Errorf("the entered program saw %q, want %q", got, want)
	}
}

func TestEnterSaysWhatIsMissing(t *testing.T) {
	err := hostexec.Enter(1<<22+1, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "hostPID") {
		t.Errorf("%v", err)
	}
}

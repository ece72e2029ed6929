package host

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// Gateway is the bridge's address; hosts are in the same /24.
	Gateway    = "10.89.0.1"
	prefix     = 24
	bridgeName = "br0"
)

// lanSpec is what the bridge's process is told.
type lanSpec struct {
	Ground  string `json:"ground"` // directory
	Persist bool   `json:"persist"`
}

// startLAN starts the process that holds the bridge's network namespace. The
// returned file is its lifeline: when the last copy of it is closed, the
// process sweeps and goes, unless the ground is persistent.
func startLAN(spec lanSpec, log *os.File) (process, io.Closer, error) {
	cmd := stage(stageLAN)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Setsid: true}
	cmd.Stderr = log
	in, out, err := start(cmd, spec)
	if err != nil {
		return process{}, nil, fmt.Errorf("start the bridge's process: %w", err)
	}
	var r report
	if err := json.NewDecoder(out).Decode(&r); err != nil || r.Error != "" {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return process{}, nil, fmt.Errorf("make bridge: %w", errors.Join(err, r.err()))
	}
	go func() { _ = cmd.Wait() }() // reap it
	p, err := lookup(cmd.Process.Pid)
	return p, in, err
}

// start starts a stage with pipes both ways; its first line of input is spec.
func start(cmd *exec.Cmd, spec any) (io.WriteCloser, io.Reader, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	// Not StdoutPipe, which Wait closes under the reader.
	out, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd.Stdout = write
	err = cmd.Start()
	write.Close()
	if err != nil {
		out.Close()
		return nil, nil, err
	}
	return in, out, json.NewEncoder(in).Encode(spec)
}

// runLAN is the stage: a bridge, and a life until the lifeline ends.
func runLAN() error {
	in := bufio.NewReader(os.Stdin)
	var spec lanSpec
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &spec)
	}
	if err == nil {
		err = makeBridge()
	}
	if err != nil {
		return errors.Join(err, reportError(err).write(os.Stdout))
	}
	if err := (report{Started: true}).write(os.Stdout); err != nil {
		return err
	}
	os.Stdout.Close()
	if spec.Persist {
		select {} // until killed
	}
	_, _ = io.Copy(io.Discard, in)
	// The owner is going, but its lock may be held a moment longer than the
	// lifeline.
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		err = Sweep()
		if _, gone := os.Stat(spec.Ground); errors.Is(gone, fs.ErrNotExist) {
			break
		}
	}
	return err
}

func makeBridge() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}
	address, err := netlink.ParseAddr(fmt.Sprintf("%s/%d", Gateway, prefix))
	if err != nil {
		return err
	}
	return errors.Join(
		netlink.LinkSetUp(lo),
		netlink.LinkAdd(bridge),
		netlink.AddrAdd(bridge, address),
		netlink.LinkSetUp(bridge),
		// Hosts learn at once that there is nothing beyond the bridge.
		netlink.RouteAdd(&netlink.Route{Type: unix.RTN_UNREACHABLE, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Priority: 4000}),
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
	)
}

// plug joins the network namespace of pid to the bridge.
func plug(lan, pid int, name, ip string) error {
	ours, err := netns.GetFromPid(lan)
	if err != nil {
		return err
	}
	defer ours.Close()
	theirs, err := netns.GetFromPid(pid)
	if err != nil {
		return err
	}
	defer theirs.Close()
	outside, err := netlink.NewHandleAt(ours)
	if err != nil {
		return err
	}
	defer outside.Close()
	inside, err := netlink.NewHandleAt(theirs)
	if err != nil {
		return err
	}
	defer inside.Close()

	port := "v-" + name
	if old, err := outside.LinkByName(port); err == nil {
		// The kernel removes an earlier boot's a little after its last process.
		if err := outside.LinkDel(old); err != nil {
			return fmt.Errorf("remove old port: %w", err)
		}
	}
	bridge, err := outside.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: port, MasterIndex: bridge.Attrs().Index},
		PeerName:  "eth0", PeerNamespace: netlink.NsFd(theirs),
	}
	if err := outside.LinkAdd(veth); err != nil {
		return fmt.Errorf("add port: %w", err)
	}
	lo, err := inside.LinkByName("lo")
	if err != nil {
		return err
	}
	eth0, err := inside.LinkByName("eth0")
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr(ip + "/" + strconv.Itoa(prefix))
	if err != nil {
		return err
	}
	return errors.Join(
		outside.LinkSetUp(veth),
		inside.LinkSetUp(lo),
		inside.AddrAdd(eth0, address),
		inside.LinkSetUp(eth0),
		inside.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP(Gateway)}),
	)
}

// DialContext connects to a TCP address of one of the ground's hosts, as from
// the gateway. It fits rest.Config.Dial of client-go.
func (g *Ground) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	fd, err := g.socket()
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	limit := 10 * time.Second
	if end, ok := ctx.Deadline(); ok && time.Until(end) < limit {
		limit = max(time.Until(end), time.Millisecond)
	}
	file := os.NewFile(uintptr(fd), address)
	defer file.Close() // net.FileConn has its own copy
	timeout := unix.NsecToTimeval(limit.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: os.NewSyscallError("connect", err)}
	}
	return net.FileConn(file)
}

// socket is a TCP socket of the bridge's network namespace: a socket keeps the
// namespace it was made in.
func (g *Ground) socket() (int, error) {
	runtime.LockOSThread() // until back in the machine's namespace
	own, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return -1, err
	}
	defer own.Close()
	lan, err := netns.GetFromPid(g.record.LAN.PID)
	if err != nil {
		runtime.UnlockOSThread()
		return -1, err
	}
	defer lan.Close()
	if err := netns.Set(lan); err != nil {
		runtime.UnlockOSThread()
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if back := netns.Set(own); back != nil {
		// The thread stays locked: it ends with this goroutine.
		return fd, back
	}
	runtime.UnlockOSThread()
	return fd, err
}

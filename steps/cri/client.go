package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	ctrd "github.com/containerd/containerd/v2/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// DefaultSocket is where containerd listens unless its configuration says
// otherwise.
const DefaultSocket = "/run/containerd/containerd.sock"

// namespace is containerd's for all that the kubelet runs.
const namespace = "k8s.io"

// maxMessage is what the kubelet allows for an answer of the runtime too.
const maxMessage = 16 << 20

// client speaks CRI and, for what CRI does not say, containerd's own API, over
// one connection.
type client struct {
	fs         hostexec.FS
	conn       *grpc.ClientConn
	containerd *ctrd.Client
}

// Dial returns a client of the containerd that listens on the host's socket.
// It does not wait for an answer: a containerd that is down, or that does not
// answer in time, is the error of the first call.
func Dial(_ context.Context, host hostexec.FS, socket string) (Client, error) {
	return dialWith(host, socket, patienceFor)
}

func dialWith(host hostexec.FS, socket string, patience func(method string) time.Duration) (Client, error) {
	dial := host.Dialer(socket)
	conn, err := grpc.NewClient("passthrough:///containerd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			limit := patience(method)
			limited, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer for %s", limit))
			defer cancel()
			err := invoke(limited, method, req, reply, cc, opts...)
			if err != nil && ctx.Err() == nil && limited.Err() != nil {
				return fmt.Errorf("%w (%w)", err, context.Cause(limited))
			}
			return err
		}),
		grpc.WithNoProxy())
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w", socket, err)
	}
	own, err := ctrd.NewWithConn(conn, ctrd.WithDefaultNamespace(namespace))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to containerd at %s: %w", socket, err), conn.Close())
	}
	return &client{fs: host, conn: conn, containerd: own}, nil
}

func (c *client) Close() error { return c.conn.Close() }

func (c *client) runtime() runtimeapi.RuntimeServiceClient {
	return runtimeapi.NewRuntimeServiceClient(c.conn)
}

func (c *client) Version(ctx context.Context) (string, error) {
	answer, err := c.containerd.Version(ctx)
	if err != nil {
		return "", fmt.Errorf("ask containerd for its version: %w", err)
	}
	return strings.TrimPrefix(answer.Version, "v"), nil
}

func (c *client) Ready(ctx context.Context) error {
	answer, err := c.runtime().Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return fmt.Errorf("ask the container runtime for its status: %w", err)
	}
	for _, condition := range answer.GetStatus().GetConditions() {
		if condition.GetStatus() {
			continue
		}
		switch condition.GetType() {
		case runtimeapi.RuntimeReady:
		case runtimeapi.NetworkReady:
			configured, err := c.networkConfigured(answer.GetInfo()["config"])
			if err != nil {
				return err
			}
			if !configured {
				continue
			}
		default: // such as a warning about deprecated settings
			continue
		}
		return fmt.Errorf("container runtime: %s is false: %s %s",
			condition.GetType(), condition.GetReason(), condition.GetMessage())
	}
	return nil
}

// networkConfigured tells whether there is a CNI configuration to be ready
// with. config is the CRI plugin's configuration as its status shows it.
func (c *client) networkConfigured(config string) (bool, error) {
	var cri struct {
		CNI struct {
			ConfDir string `json:"confDir"`
		} `json:"cni"`
	}
	// Left empty by a runtime that does not show it.
	_ = json.Unmarshal([]byte(config), &cri)
	if cri.CNI.ConfDir == "" {
		cri.CNI.ConfDir = "/etc/cni/net.d"
	}
	files, err := c.fs.ReadDir(cri.CNI.ConfDir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return slices.ContainsFunc(files, func(f fs.DirEntry) bool {
		return slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(f.Name()))
	}), err
}

func (c *client) ImageID(ctx context.Context, ref string) (string, error) {
	answer, err := runtimeapi.NewImageServiceClient(c.conn).ImageStatus(ctx,
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil {
		return "", fmt.Errorf("ask the container runtime for image %s: %w", ref, err)
	}
	return answer.GetImage().GetId(), nil
}

// lostReason is what containerd gives as the reason when it found no task for
// a container that ran when it last looked.
const lostReason = "Unknown"

func (c *client) Ended(ctx context.Context, id string) (bool, error) {
	answer, err := c.runtime().ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if status.Code(err) == codes.NotFound {
		return true, nil // removed: only the kubelet does that
	}
	if err != nil {
		return false, fmt.Errorf("ask the container runtime for container %.12s: %w", id, err)
	}
	s := answer.GetStatus()
	return s.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && s.GetReason() != lostReason, nil
}

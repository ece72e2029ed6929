package steps

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
)

// A kubelet has no dry run. But before it opens, mounts or connects to
// anything it parses its flags, loads and merges its configuration, sets the
// feature gates and validates all of it, and then asks for systemd's watchdog
// and for its lock file, in this order (run in cmd/kubelet/app/server.go). So
// it is started with the node's real arguments, a watchdog time that is not a
// number and a lock file's contention without a lock file: it ends at the
// first or, at the latest, the second of them, and whatever it complains of
// earlier it would complain of in earnest.
//
// The certificate flags keep it from making the self-signed certificate that a
// kubelet's first start makes.
const (
	badWatchdog  = "WATCHDOG_USEC=trial"
	watchdogStop = "configure watchdog"
	lockStop     = "cannot exit on lock file contention"
)

func trialFlags() []string {
	return []string{"--tls-cert-file=/dev/null", "--tls-private-key-file=/dev/null", "--exit-on-lock-contention=true", "--lock-file="}
}

// tryKubelet lets the bundle's kubelet judge these arguments and, when given, a
// configuration in place of the arguments' own file. It returns its complaint,
// "" for none; an error means that it could not be asked. It leaves nothing
// behind.
func tryKubelet(ctx context.Context, env Env, f kubeletFound, args []string, config []byte) (string, error) {
	binary, err := program(ctx, env, image.Kubelet, "kubelet")
	if err != nil {
		return "", err
	}
	argv := slices.Concat([]string{binary}, args, trialFlags())
	c := hostexec.Command{
		Argv:  argv,
		Env:   append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", badWatchdog}, gates(f.unit.Environment)...),
		Grace: time.Second,
	}
	if config != nil {
		c.Argv, c.Stdin = append(c.Argv, "--config=/dev/stdin"), bytes.NewReader(config)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("its trial did not end"))
	defer cancel()
	out, err := env.Host.Commands.Run(ctx, c)
	if err == nil {
		return "", errors.New("try the new kubelet: it ended without a word")
	}
	var failed *hostexec.CommandError
	if !errors.As(err, &failed) || failed.Code < 0 {
		return "", fmt.Errorf("try the new kubelet: %w", err)
	}
	said := string(out.Stderr)
	if said == "" {
		said = failed.Stderr
	}
	if strings.Contains(said, watchdogStop) || strings.Contains(said, lockStop) {
		if strings.Contains(said, "lenient decoding") {
			env.Log.Warn("the new kubelet does not know all of its configuration", "said", firstMatch(said, "lenient decoding"))
		}
		return "", nil
	}
	complaint := complaintOf(said)
	for _, flag := range trialFlags() {
		name, _, _ := strings.Cut(flag, "=")
		if strings.HasSuffix(complaint, "unknown flag: "+name) {
			return "", fmt.Errorf("try the new kubelet: %s", complaint)
		}
	}
	return complaint, nil
}

// gates are the unit's own variables that the Go runtime and the kubelet's
// feature gates read; no other one changes its judgement.
func gates(environment []string) []string {
	var kept []string
	for _, kv := range environment {
		if strings.HasPrefix(kv, "GO") || strings.HasPrefix(kv, "KUBE_FEATURE_") {
			kept = append(kept, kv)
		}
	}
	return kept
}

var failedWith = regexp.MustCompile(`"command failed" err=("(?:[^"\\]|\\.)*")`)

// complaintOf finds the kubelet's own message in its log.
func complaintOf(said string) string {
	complaint := ""
	for line := range strings.Lines(said) {
		var entry struct{ Msg, Err string }
		if m := failedWith.FindStringSubmatch(line); m != nil {
			if text, err := strconv.Unquote(m[1]); err == nil {
				complaint = text
			}
		} else if json.Unmarshal([]byte(line), &entry) == nil && entry.Err != "" {
			complaint = entry.Err
		} else if text, ok := strings.CutPrefix(line, "panic: "); ok && complaint == "" {
			complaint = strings.TrimSpace(text)
		}
	}
	if complaint == "" {
		lines := strings.Split(strings.TrimSpace(said), "\n")
		complaint = lines[len(lines)-1]
	}
	complaint, _, _ = strings.Cut(complaint, ", path: &TypeMeta")
	return complaint
}

func firstMatch(text, mark string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, mark) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// refused is the block for a complaint.
func refused(env Env, what, complaint, where string) Block {
	return Block{
		Reason: fmt.Sprintf("kubelet %s refuses %s: %s", targetVersion(env.Bundle), what, complaint),
		Hint:   "change it in one of: " + where,
	}
}

// tryNow tries the new kubelet with what its start would get this moment.
func tryNow(ctx context.Context, env Env, f kubeletFound) error {
	complaint, err := tryKubelet(ctx, env, f, f.args, nil)
	if err != nil {
		return err
	}
	if complaint != "" {
		return &BlockedError{Blocks: []Block{refused(env, "this node's flags or configuration", complaint, commandLineFiles(f))}}
	}
	return nil
}

func commandLineFiles(f kubeletFound) string {
	files := unitFiles(f.unit)
	if config, ok := flagValue(f.args, "config"); ok {
		files += " " + config
	}
	return files
}

// tryAhead tries the new kubelet with what its start will get once kubeadm has
// done its work on this node: kubeadm takes flags away that the new version
// does not know any more, from its own file, and writes the cluster's
// configuration over the node's. A kubelet that cannot be tried here blocks
// nothing: Run tries it again.
func tryAhead(ctx context.Context, env Env, f kubeletFound) ([]Block, []Fact, error) {
	fact := func(have string) []Fact { return []Fact{{Name: "new kubelet's trial", Have: have}} }
	target, err := version.ParseGeneric(targetVersion(env.Bundle))
	if err != nil {
		return nil, nil, fmt.Errorf("the bundle's kubelet: %w", err)
	}
	args, err := unitArgs(env.Host.FS, f.unit, func(file string, vars map[string]string) {
		if file == kubeletFlagsFile {
			vars["KUBELET_KUBEADM_ARGS"] = withoutFlags(vars["KUBELET_KUBEADM_ARGS"], strippedBy(target)...)
		}
	})
	if err != nil {
		return nil, nil, err
	}
	complaint, err := tryKubelet(ctx, env, f, args, nil)
	if err != nil {
		return untried(err)
	}
	cluster := clusterKubeletConfig(ctx, env)
	if cluster == nil || env.Options.Kubeadm.Patches != "" {
		if complaint != "" {
			return []Block{refused(env, "this node's flags or configuration", complaint, commandLineFiles(f))}, nil, nil
		}
		return nil, fact("accepts the node's flags and configuration"), nil
	}
	later, err := tryKubelet(ctx, env, f, args, cluster)
	switch {
	case err != nil:
		return untried(err)
	case later == "" && complaint != "":
		return nil, fact("accepts the configuration that kubeadm will write, not the present one: " + complaint), nil
	case later == "":
		return nil, fact("accepts the node's flags and configuration"), nil
	case complaint != "":
		return []Block{refused(env, "this node's flags or configuration", complaint, commandLineFiles(f))}, nil, nil
	default:
		return []Block{refused(env, "the cluster's configuration, which kubeadm will write to this node", later,
			"kubectl --namespace kube-system edit configmap kubelet-config")}, nil, nil
	}
}

// untried is what a kubelet that could not be tried means to a look: a fact,
// but for one that is not what the bundle's manifest says.
func untried(err error) ([]Block, []Fact, error) {
	var bad *image.BadBundleError
	if errors.As(err, &bad) {
		return nil, nil, err
	}
	have := err.Error()
	if errors.Is(err, hostexec.ErrNotOnHost) {
		have = notTried
	}
	return nil, []Fact{{Name: "new kubelet's trial", Have: have}}, nil
}

// strippedBy are the flags that `kubeadm upgrade` of a version takes out of
// kubeadm-flags.env (unwantedFlags in its post-upgrade phase).
func strippedBy(target *version.Version) []string {
	if target.Major() == 1 && target.Minor() == 35 {
		return []string{"pod-infra-container-image"}
	}
	return nil
}

func withoutFlags(args string, flags ...string) string {
	var kept []string
	for _, word := range strings.Fields(args) {
		name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
		if !slices.Contains(flags, name) {
			kept = append(kept, word)
		}
	}
	return strings.Join(kept, " ")
}

// clusterKubeletConfig is the configuration that kubeadm writes to each node;
// nil when it cannot be had now. Nodes may read it: kubeadm makes a Role for it.
func clusterKubeletConfig(ctx context.Context, env Env) []byte {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client, err := env.Kube(ctx)
	if err != nil {
		return nil
	}
	cm, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "kubelet-config", metav1.GetOptions{})
	if err != nil || cm.Data[image.Kubelet] == "" {
		return nil
	}
	return []byte(cm.Data[image.Kubelet])
}

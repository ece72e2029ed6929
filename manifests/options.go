package manifests

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// DefaultNamespace is where the upgrader's pods run.
const DefaultNamespace = "node-upgrader"

// The steps that this package treats in a way of their own.
const (
	stepCopy       = "copy"
	stepContainerd = "containerd"
	stepKubeadm    = "kubeadm"
	stepDrain      = "drain"
	stepKubelet    = "kubelet"
	stepUncordon   = "uncordon"
)

// DefaultSteps are all steps, in the order of an upgrade.
func DefaultSteps() []string {
	return []string{stepCopy, stepContainerd, "cni-plugins", stepKubeadm, stepDrain, stepKubelet, stepUncordon}
}

// PodOptions say which node is upgraded and how. Node and Image are required.
type PodOptions struct {
	Node  string // --node
	Image string // --image, best by digest; never "latest"

	Namespace string // --namespace; "": DefaultNamespace
	Name      string // --name; "": "upgrader-" and the node's name, shortened where it is too long
	RunID     string // --run-id; "": the program's default

	// Steps are the names of the steps, in order; none: DefaultSteps.
	Steps []string // --steps
	// DrainFirst puts the drain before containerd.
	DrainFirst bool // --drain-first

	ImagePullPolicy  corev1.PullPolicy // --image-pull-policy; "": IfNotPresent
	ImagePullSecrets []string          // --image-pull-secrets

	Run     RunOptions
	Kubeadm KubeadmOptions
	Drain   *DrainOptions // nil: the program's defaults
}

// OptionError is an option that makes no sense, by the name of its flag.
type OptionError struct {
	Flag   string // with its dashes
	Reason string
}

func (e *OptionError) Error() string { return e.Flag + ": " + e.Reason }

// Validate returns everything that is wrong with the options, each an
// *OptionError, joined.
func (o PodOptions) Validate() error {
	_, err := o.complete()
	return err
}

// complete fills in the defaults and validates.
func (o PodOptions) complete() (PodOptions, error) {
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	var nameErr error
	if o.Name == "" {
		o.Name = defaultName(o.Node) // valid where the node's is
	} else {
		nameErr = checkName(o.Name)
	}
	if o.ImagePullPolicy == "" {
		o.ImagePullPolicy = corev1.PullIfNotPresent
	}
	o.Steps = slices.Clone(o.Steps)
	if len(o.Steps) == 0 {
		o.Steps = DefaultSteps()
	}
	errs := []error{
		checkNode(o.Node),
		checkImage(o.Image),
		checkNamespace(o.Namespace),
		nameErr,
		checkRunID(o.RunID),
		checkPullPolicy(o.ImagePullPolicy),
		checkSteps(o),
		o.Run.validate(), o.Kubeadm.validate(),
	}
	for _, secret := range o.ImagePullSecrets {
		errs = append(errs, invalid("--image-pull-secrets", secret, validation.IsDNS1123Subdomain(secret)))
	}
	if o.Drain != nil {
		errs = append(errs, o.Drain.validate())
	}
	if err := errors.Join(errs...); err != nil {
		return PodOptions{}, err
	}
	if o.DrainFirst {
		o.Steps = drainFirst(o.Steps)
	}
	return o, nil
}

// maxName is the longest name of a pod here. A Job's name becomes a label's
// value, and a pod's a host name, both of which end there.
const maxName = validation.LabelValueMaxLength

// defaultName is the same for the same node, and another one for another node.
func defaultName(node string) string {
	n := "upgrader-" + node
	if len(n) <= maxName {
		return n
	}
	sum := sha256.Sum256([]byte(node))
	suffix := "-" + hex.EncodeToString(sum[:4])
	return strings.TrimRight(n[:maxName-len(suffix)], "-.") + suffix
}

func checkNode(node string) error {
	if node == "" {
		return &OptionError{"--node", "the name of the node to upgrade is required"}
	}
	return invalid("--node", node, validation.IsDNS1123Subdomain(node))
}

func checkName(n string) error {
	if len(n) > maxName {
		return &OptionError{"--name", fmt.Sprintf("%q has %d characters, at most %d are allowed", n, len(n), maxName)}
	}
	return invalid("--name", n, validation.IsDNS1123Subdomain(n))
}

func checkNamespace(namespace string) error {
	return invalid("--namespace", namespace, validation.IsDNS1123Label(namespace))
}

// checkRunID keeps to what a label's value may be, which is also a safe name of
// a directory.
func checkRunID(id string) error {
	return invalid("--run-id", id, validation.IsValidLabelValue(id))
}

func checkPullPolicy(p corev1.PullPolicy) error {
	switch p {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
		return nil
	default:
		return &OptionError{"--image-pull-policy", fmt.Sprintf("%q is none of Always, IfNotPresent, Never", p)}
	}
}

func checkImage(image string) error {
	if image == "" {
		return &OptionError{"--image", "the upgrader's image is required"}
	}
	ref, err := name.ParseReference(image)
	if err != nil {
		return &OptionError{"--image", err.Error()}
	}
	if tag, ok := ref.(name.Tag); ok && tag.TagStr() == name.DefaultTag {
		return &OptionError{"--image", fmt.Sprintf("%q means whatever is newest: give a digest, or a tag of one version", image)}
	}
	return nil
}

func checkSteps(o PodOptions) error {
	var errs []error
	known := DefaultSteps()
	seen := map[string]bool{}
	for _, s := range o.Steps {
		switch {
		case !slices.Contains(known, s):
			errs = append(errs, &OptionError{"--steps", fmt.Sprintf("no step %q; the steps are: %s", s, strings.Join(known, ", "))})
		case seen[s]:
			errs = append(errs, &OptionError{"--steps", fmt.Sprintf("%q is there twice", s)})
		}
		seen[s] = true
	}
	if o.DrainFirst && !seen[stepDrain] {
		errs = append(errs, &OptionError{"--drain-first", "drain is not among --steps"})
	}
	if o.Drain != nil && !seen[stepDrain] {
		errs = append(errs, &OptionError{"--steps", "drain's flags are given, but drain is not among the steps"})
	}
	if len(o.Kubeadm.args()) > 0 && !seen[stepKubeadm] {
		errs = append(errs, &OptionError{"--steps", "kubeadm's flags are given, but kubeadm is not among the steps"})
	}
	return errors.Join(errs...)
}

// drainFirst moves the drain to right before containerd, where it is not
// already earlier.
func drainFirst(steps []string) []string {
	c, d := slices.Index(steps, stepContainerd), slices.Index(steps, stepDrain)
	if c < 0 || d < c {
		return steps
	}
	return slices.Insert(slices.Delete(steps, d, d+1), c, stepDrain)
}

// invalid is nil when there are no reasons.
func invalid(flag, value string, reasons []string) error {
	if len(reasons) == 0 {
		return nil
	}
	return &OptionError{flag, fmt.Sprintf("%q: %s", value, strings.Join(reasons, "; "))}
}

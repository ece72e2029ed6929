package kube

import (
	"fmt"
	"path"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// requestTimeout bounds one request: an API server that was killed under an
// open connection must not hold a step longer than that.
const requestTimeout = 15 * time.Second

// InCluster is the API server with the rights of the pod's service account.
func InCluster() (kubernetes.Interface, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("use the pod's service account: %w", err)
	}
	return newClient(config)
}

// FromFile is the API server as the current context of a kubeconfig on the host
// names it. The files that it refers to are read once, from the host as well,
// relative ones from beside the kubeconfig.
func FromFile(fs hostexec.FS, file string) (kubernetes.Interface, error) {
	config, err := configFrom(fs, file)
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", file, err)
	}
	return newClient(config)
}

func configFrom(fs hostexec.FS, file string) (*rest.Config, error) {
	data, err := fs.ReadFile(file)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return nil, err
	}
	if err := inline(fs, path.Dir(file), config); err != nil {
		return nil, err
	}
	return clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
}

// inline replaces the references to files, of the current context only, by
// their content: client-go would look for them in this process's own root.
func inline(fs hostexec.FS, dir string, config *clientcmdapi.Config) error {
	current := config.Contexts[config.CurrentContext]
	if current == nil {
		return fmt.Errorf("no context %q", config.CurrentContext)
	}
	load := func(into *[]byte, ref *string) error {
		if *ref == "" {
			return nil
		}
		p := *ref
		if !path.IsAbs(p) {
			p = path.Join(dir, p)
		}
		data, err := fs.ReadFile(p)
		if err != nil {
			return err
		}
		*into, *ref = data, ""
		return nil
	}
	if c := config.Clusters[current.Cluster]; c != nil {
		if err := load(&c.CertificateAuthorityData, &c.CertificateAuthority); err != nil {
			return err
		}
	}
	user := config.AuthInfos[current.AuthInfo]
	if user == nil {
		return nil
	}
	if err := load(&user.ClientCertificateData, &user.ClientCertificate); err != nil {
		return err
	}
	if err := load(&user.ClientKeyData, &user.ClientKey); err != nil {
		return err
	}
	var token []byte
	if err := load(&token, &user.TokenFile); err != nil {
		return err
	}
	if len(token) > 0 {
		user.Token = string(token)
	}
	return nil
}

func newClient(config *rest.Config) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = "upgrader"
	config.Timeout = requestTimeout
	// One node's pods, not a controller's load; the default of 5 a second
	// would make a drain of a full node wait for itself.
	config.QPS, config.Burst = 50, 100
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return client, nil
}

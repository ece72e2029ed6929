package steps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// members are etcd's by name, of the cluster as it is now: the member is asked,
// or its data where it does not run. Without either the snapshot tells.
func (b wayBack) members(ctx context.Context, env Env, r *etcdRestore) ([]string, error) {
	host := env.Host.FS
	m, err := localMember(host)
	if err == nil && m != nil {
		var names []string
		if names, err = m.members(ctx); err == nil {
			return names, nil
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		env.Log.Warn("etcd does not answer, looking into its data", "reason", err.Error())
	}
	file := path.Join(r.Member, "snap", "db")
	if there, err := host.Exists(file); err != nil {
		return nil, err
	} else if there {
		names, err := storedMembers(host, file)
		if errors.Is(err, bolterrors.ErrTimeout) {
			return nil, &HintError{
				Err:  errors.New("etcd runs and does not answer: whether it is the only member cannot be told"),
				Hint: "crictl ps -a --name etcd; crictl logs of its container",
			}
		}
		if err == nil {
			return names, nil
		}
		env.Log.Warn("etcd's data cannot be read, the snapshot is asked", "reason", err.Error())
	}
	return storedMembers(host, b.snapshot.File)
}

// members asks etcd.
func (m *etcdMember) members(ctx context.Context) ([]string, error) {
	client, err := m.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, etcdAnswer)
	defer cancel()
	answer, err := client.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("members of etcd at %s: %w", m.endpoint, err)
	}
	var names []string
	for _, member := range answer.Members {
		names = append(names, member.Name)
	}
	return names, nil
}

// storedMembers are those that a database, or a snapshot of it, knows.
func storedMembers(host hostexec.FS, file string) (names []string, err error) {
	real, err := host.Resolve(file)
	if err != nil {
		return nil, err
	}
	db, err := openDB(real)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		members := tx.Bucket([]byte("members"))
		if members == nil {
			return fmt.Errorf("%s does not tell etcd's members", file)
		}
		return members.ForEach(func(id, data []byte) error {
			var member struct {
				Name string `json:"name"`
			}
			if err := json.Unmarshal(data, &member); err != nil {
				return fmt.Errorf("%s: member %s: %w", file, id, err)
			}
			names = append(names, member.Name)
			return nil
		})
	})
	return names, err
}

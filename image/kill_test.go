package image

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestStageKilled kills a staging process at many instants. Whatever it left,
// the next call makes a whole stage of it.
func TestStageKilled(t *testing.T) {
	if dir := os.Getenv("IMAGE_TEST_STAGE"); dir != "" {
		o := StageOptions{Store: os.Getenv("IMAGE_TEST_STORE"), Upgrader: "/proc/self/exe", BootID: "now"}
		if _, err := Stage(context.Background(), mustOpen(t, dir), o); err != nil {
			t.Fatal(err)
		}
		return
	}
	b := mustOpen(t, fixture(t, t.TempDir(), func(string) int64 { return 5_000_000 }))
	half := 0
	for i := range 12 {
		o := options(t)
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestStageKilled$")
		cmd.Env = append(os.Environ(), "IMAGE_TEST_STAGE="+b.Dir, "IMAGE_TEST_STORE="+o.Store)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for waited := time.Now(); ; { // for the moment it writes
			if entries, err := os.ReadDir(o.Store); err == nil && len(entries) > 0 {
				break
			}
			if time.Since(waited) > time.Minute {
				t.Fatal("it does not write")
			}
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(time.Duration(i*i) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil && cmd.ProcessState.Exited() {
			t.Fatal(err)
		}
		if _, err := FindStaged(t.Context(), o.Store, b.Digest, o.BootID); err != nil {
			if !errors.Is(err, ErrNotStaged) {
				t.Errorf("after a kill: %v", err)
			}
			half++
		}
		mustStage(t, b, o)
	}
	if half == 0 {
		t.Error("no kill came in time")
	}
	t.Logf("%d of 12 were killed before the end", half)
}

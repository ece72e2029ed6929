package image

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// Each change in the store may be refused: then the stage is not there, and the
// next call makes it whole, whatever the first one had begun.
func TestStageRefused(t *testing.T) {
	b := openFixture(t)
	refused := errors.New("refused")
	for _, before := range []string{"nothing", "a stage of another upgrader", "a damaged stage"} {
		t.Run(before, func(t *testing.T) {
			for at := 1; ; at++ {
				o := options(t)
				switch before {
				case "a stage of another upgrader":
					mustStage(t, b, o)
					o.Upgrader = upgraderFixture(t, "two")
				case "a damaged stage":
					write(t, mustStage(t, b, o).Bundle.Dir+"/surplus", nil)
				}
				var mu sync.Mutex
				count := 0
				o.Effect = func(string, string) error {
					mu.Lock()
					defer mu.Unlock()
					if count++; count == at {
						return refused
					}
					return nil
				}
				_, err := Stage(context.Background(), b, o)
				if count < at {
					if err != nil {
						t.Errorf("nothing was refused: %v", err)
					}
					if at < 3 {
						t.Errorf("only %d changes", at-1)
					}
					return
				}
				if !errors.Is(err, refused) {
					t.Errorf("change %d was refused: %v", at, err)
				}
				o.Effect = nil
				mustStage(t, b, o)
			}
		})
	}
}

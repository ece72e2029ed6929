package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/steps"
)

// dryDrain forecasts the drain from where it would be done, with the same
// credentials, and changes nothing: in a pod it is the first container, so that
// a budget that forbids the drain is found before anything was changed.
func dryDrain(cmd *cobra.Command, f *flags) error {
	c, err := f.validate(cmd)
	if err != nil {
		return err
	}
	p, err := findPlace()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	s, err := newSession(ctx, c, p, cmd.ErrOrStderr())
	if err != nil {
		return errors.Join(err, lastWord(outcome(err, nil)))
	}
	defer s.close()
	unit, err := s.units.Show(ctx, steps.UnitName)
	var report steps.Report
	switch {
	case err != nil:
	case unit.Running():
		// The next step follows it, or is told that it is another run's.
		s.runner.Env.Log.Info("no forecast: an upgrade is at work", "unit", steps.UnitName)
	default:
		if report, err = s.runner.Forecast(ctx); err == nil {
			err = printReport(cmd.OutOrStdout(), c.output, report)
		}
	}
	if blocks := report.Blocked(); err == nil && len(blocks) > 0 {
		err = &steps.BlockedError{Blocks: blocks}
	}
	return errors.Join(err, lastWord(outcome(err, nil)))
}

package controller

import (
	"context"
)

// withdraw looks for an interrupted uninstallation, at intervals until ctx ends.
func withdraw(ctx context.Context, o Options) {
	log := o.Log.WithName("withdraw")
	for again := true; again; again = pause(ctx, o.Intervals.Withdraw, nil) {
		was, err := o.Withdraw(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			log.Error(err, "looking for an interrupted uninstallation failed, will retry")
		case was:
			log.Info("an interrupted uninstallation was withdrawn, as Fairlead is installed again")
		}
	}
}

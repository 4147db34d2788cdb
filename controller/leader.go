package controller

import (
	"context"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// leaseName is the Lease in kube-system by which several controllers elect a leader. A leader that disappears without
// releasing it is replaced after Intervals.LeaseDuration.
const leaseName = "fairlead-controller"

// lead runs work while this controller is the leader, until ctx ends. Correctness does not depend on a single leader:
// two write the same, or the API server grants it to one.
func lead(ctx context.Context, o Options, work func(context.Context)) error {
	log := o.Log.WithName("leader")
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("getting the host name: %w", err)
	}
	me := host + "_" + string(uuid.NewUUID())
	lock := &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: leaseName},
		Client: o.Kubernetes.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: me}}
	busy := make(chan struct{}, 1) // full while work runs
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{Lock: lock, Name: leaseName,
			LeaseDuration: o.Intervals.LeaseDuration, RenewDeadline: o.Intervals.LeaseRenew, RetryPeriod: o.Intervals.LeaseRetry,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					busy <- struct{}{}
					defer func() { <-busy }()
					if ctx.Err() == nil {
						log.Info("became leader", "lease", "kube-system/"+leaseName, "identity", me)
						work(ctx)
					}
				},
				OnStoppedLeading: func() {},
				OnNewLeader: func(who string) {
					if who != me {
						log.Info("standing by", "leader", who)
					}
				}}})
		if err != nil {
			return fmt.Errorf("leader election: %w", err)
		}
		elector.Run(ctx)
		busy <- struct{}{}
		<-busy
		if ctx.Err() == nil {
			log.Info("lost the lease, standing by", "lease", "kube-system/"+leaseName)
		}
	}
	return nil
}

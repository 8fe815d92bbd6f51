package election_test

import (
	"context"
	"log/slog"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/headgate/headgate/control/election"
	"github.com/headgate/headgate/test/apiserver"
)

// The Lease moves between controls at a real API server.
func TestLeaseAtARealAPIServer(t *testing.T) {
	server := apiserver.Run(t)
	client, err := kubernetes.NewForConfig(server.Admin())
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range []string{"a", "b"} {
		ctx, cancel := context.WithCancel(t.Context())
		begun := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			ended <- election.New(client, "default", pod, slog.New(slog.DiscardHandler)).Run(ctx,
				func(ctx context.Context, _ <-chan bool) error {
					close(begun)
					<-ctx.Done()
					return nil
				})
		}()
		<-begun
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		lease, err := client.CoordinationV1().Leases("default").Get(t.Context(), election.LeaseName, metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
			t.Errorf("%v: after %s the Lease is %+v", err, pod, lease)
		}
	}
}

package statuswriter

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/internal/objects/kube"
)

const (
	// gatewayCRD is the CRD whose annotation is read. All CRDs of a Gateway API version are applied
	// together, so one suffices.
	gatewayCRD = "gateways.gateway.networking.k8s.io"
	// releaseAnnotation is the annotation with the version of Gateway API (GEP-922).
	releaseAnnotation = "gateway.networking.k8s.io/bundle-version"
	// releaseInterval is how often control reads this annotation.
	releaseInterval = time.Minute
)

// readRelease reads the version of Gateway API if the last read is old enough. If it has changed,
// readRelease queues the GatewayClasses. Only run calls it.
func (r *Writer) readRelease() {
	r.mu.Lock()
	in := r.gateways
	r.mu.Unlock()
	if in == nil || in.Network == nil || len(in.Network.Classes) == 0 || !r.leads() ||
		!r.releaseRead.IsZero() && time.Since(r.releaseRead) < releaseInterval {
		return
	}
	r.releaseRead = time.Now()
	ctx, cancel := context.WithTimeout(r.writes, statusTimeout)
	defer cancel()
	crd := &metav1.PartialObjectMetadata{TypeMeta: kube.CRDType}
	err := r.client.Get(ctx, client.ObjectKey{Name: gatewayCRD}, crd)
	if apierrors.IsNotFound(err) {
		return // without CRDs there are no GatewayClasses to write
	}
	switch {
	case err != nil && !r.releaseUnknown:
		r.log.Warn("cannot read the version of Gateway API from the CRD of Gateways; retrying", "crd", gatewayCRD, "err",
			fmt.Sprint(err, kube.HintFor(err)))
	case err == nil && r.releaseUnknown:
		r.log.Info("can read the CRD of Gateways again", "crd", gatewayCRD)
	}
	if r.releaseUnknown = err != nil; r.releaseUnknown {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if is := []string{crd.Annotations[releaseAnnotation]}; !slices.Equal(is, r.release) {
		r.release = is
		r.setGateways()
	}
}

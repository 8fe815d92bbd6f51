package pods

import "context"

// AnnounceOnce points the Service to a port of this pod.
func (p Pod) AnnounceOnce(ctx context.Context, port uint16) error { return p.announce(ctx, port) }

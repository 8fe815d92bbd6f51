package place

import (
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// rolling is how long a rollout lasts: for this time after a workload got a pod of a newer version,
// its older pods are treated as about to be replaced (ModelMesh 0.12, UpgradeTracker).
const rolling = 15 * time.Minute

// version is one version of a workload, identified by its pod template.
type version struct {
	namespace, workload, template string
}

func versionOf(e *objects.Engine) version {
	return version{e.Pod.Namespace, e.Workload, e.Template}
}

// outgoing returns the addresses of the endpoints that will probably be replaced soon: their
// workload has a newer version, all pods of which were created later, at least one of them
// recently. So pods of a version that is being rolled back to are not outgoing, and neither are
// pods of two versions that run side by side.
func outgoing(all []objects.Engine, now time.Time) map[string]bool {
	first, last := make(map[version]time.Time), make(map[version]time.Time)
	newest := make(map[version]version) // the key is a workload: a version without a template
	for i := range all {
		e := &all[i]
		if e.Workload == "" {
			continue
		}
		v := versionOf(e)
		if at, known := first[v]; !known || e.Made.Before(at) {
			first[v] = e.Made
		}
		if e.Made.After(last[v]) {
			last[v] = e.Made
		}
	}
	for v, at := range first {
		of := version{v.namespace, v.workload, ""}
		if is, known := newest[of]; !known || at.After(first[is]) {
			newest[of] = v
		}
	}
	out := make(map[string]bool)
	for i := range all {
		e := &all[i]
		v, is := versionOf(e), newest[version{e.Pod.Namespace, e.Workload, ""}]
		if e.Workload != "" && first[is].After(last[v]) && now.Sub(last[is]) < rolling {
			out[e.Address] = true
		}
	}
	return out
}

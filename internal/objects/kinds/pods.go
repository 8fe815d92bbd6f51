package kinds

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// podOf converts a pod and returns what is invalid in it. A pod without a Ready condition is
// treated as ready, since people who write a pod by hand mean a server that exists. A pod that has
// ended gets no address: its status still shows one, but another pod may have that address by now.
func podOf(pod *corev1.Pod) (objects.Pod, field.ErrorList) {
	var faults field.ErrorList
	if pod.Name == "" {
		faults = append(faults, field.Required(field.NewPath("metadata", "name"), "give the object a name"))
	}
	p := objects.Pod{Name: objects.Name{Namespace: pod.Namespace, Name: pod.Name}, Labels: pod.Labels, Containers: containers(pod)}
	p.Ready, p.NodeSilent = ready(pod)
	p.Terminating = pod.DeletionTimestamp != nil
	p.Migrates = migrates(pod)
	p.Version, p.UID, p.OnTrial = version(pod), string(pod.UID), onTrial(pod)
	if pod.Status.PodIP != "" && !ended(pod) {
		ip, err := netip.ParseAddr(pod.Status.PodIP)
		if err != nil || ip.Zone() != "" {
			faults = append(faults, field.Invalid(field.NewPath("status", "podIP"), pod.Status.PodIP,
				"want an IP address, such as 10.0.0.7"))
		} else if err := objects.CheckIP(ip); err != nil {
			faults = append(faults, field.Invalid(field.NewPath("status", "podIP"), pod.Status.PodIP, err.Error()))
		}
		p.IP = ip.Unmap()
	}
	ports, fault := activePorts(pod.Annotations)
	if fault != nil {
		faults = append(faults, fault)
	}
	p.Ports = ports
	return p, faults
}

// podOfServer is podOf for a pod of an API server, which is not ready until its kubelet has said
// so.
func podOfServer(pod *corev1.Pod) (objects.Pod, field.ErrorList) {
	p, faults := podOf(pod)
	p.Ready = p.Ready && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	return p, faults
}

// trimPod removes what [podOf] does not read, which is most of a pod.
func trimPod(pod *corev1.Pod) {
	*pod = corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
			Annotations: stated(pod.Annotations), DeletionTimestamp: pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			CreationTimestamp:          pod.CreationTimestamp, UID: pod.UID, OwnerReferences: makers(pod),
		},
		Spec: corev1.PodSpec{
			ReadinessGates: pod.Spec.ReadinessGates,
			Containers:     declared(pod.Spec.Containers), InitContainers: declared(pod.Spec.InitContainers),
		},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, Conditions: readiness(pod),
			ContainerStatuses:     identities(pod.Status.ContainerStatuses),
			InitContainerStatuses: identities(pod.Status.InitContainerStatuses),
		},
	}
}

// podAnnotations are the annotations that podOf reads.
var podAnnotations = append([]string{v1alpha1.PreStop}, pool.ActivePorts...)

// stated returns the annotations that podOf reads; nil if there are none.
func stated(annotations map[string]string) map[string]string {
	var kept map[string]string
	for _, name := range podAnnotations {
		if text, ok := annotations[name]; ok {
			if kept == nil {
				kept = make(map[string]string, 1)
			}
			kept[name] = text
		}
	}
	return kept
}

// readiness returns the conditions that podOf reads: readiness, and what prevents it.
func readiness(pod *corev1.Pod) (kept []corev1.PodCondition) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady || c.Type == corev1.ContainersReady || gated(pod, c.Type) {
			kept = append(kept, corev1.PodCondition{Type: c.Type, Status: c.Status})
		}
	}
	return kept
}

// gated reports whether a pod's readiness gates include a condition.
func gated(pod *corev1.Pod, condition corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType == condition })
}

// makers returns the owner that would recreate a pod; none if there is no such owner.
func makers(pod *corev1.Pod) []metav1.OwnerReference {
	if of := metav1.GetControllerOfNoCopy(pod); of != nil {
		return []metav1.OwnerReference{{Name: of.Name, Controller: of.Controller}}
	}
	return nil
}

// version returns a pod's version of its Deployment, StatefulSet or DaemonSet, from its label. A
// Deployment has a ReplicaSet per version, whose name ends with the same hash.
func version(pod *corev1.Pod) objects.Version {
	of, template := metav1.GetControllerOfNoCopy(pod),
		cmp.Or(pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey], pod.Labels[appsv1.ControllerRevisionHashLabelKey])
	if of == nil || template == "" {
		return objects.Version{}
	}
	return objects.Version{Workload: strings.TrimSuffix(of.Name, "-"+template), Template: template, Made: pod.CreationTimestamp.Time}
}

// onTrial reports whether a pod would be ready if control had reported that models load there.
func onTrial(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || ended(pod) || says(pod, corev1.ContainersReady) != corev1.ConditionTrue {
		return false
	}
	closed := closedGates(pod)
	return len(closed) == 1 && closed[0].ConditionType == v1alpha1.ModelsLoad
}

// closedGates returns the readiness gates that keep a pod from being ready.
func closedGates(pod *corev1.Pod) (closed []corev1.PodReadinessGate) {
	for _, g := range pod.Spec.ReadinessGates {
		if says(pod, g.ConditionType) != corev1.ConditionTrue {
			closed = append(closed, g)
		}
	}
	return closed
}

// says returns the status of a pod's condition; empty if there is none.
func says(pod *corev1.Pod, condition corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range pod.Status.Conditions {
		if c.Type == condition {
			return c.Status
		}
	}
	return ""
}

// identities returns the parts of statuses that [containers] reads.
func identities(all []corev1.ContainerStatus) (kept []corev1.ContainerStatus) {
	for _, c := range all {
		if c.ContainerID != "" {
			kept = append(kept, corev1.ContainerStatus{Name: c.Name, ContainerID: c.ContainerID})
		}
	}
	return kept
}

// declared returns the parts of containers that [containers] reads.
func declared(all []corev1.Container) (kept []corev1.Container) {
	for i := range all {
		of := &all[i]
		c := corev1.Container{Name: of.Name, RestartPolicy: of.RestartPolicy}
		for _, p := range of.Ports {
			c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: p.ContainerPort})
		}
		if len(c.Ports) > 0 || c.RestartPolicy != nil {
			kept = append(kept, c)
		}
	}
	return kept
}

// containers returns a pod's running containers, with the ports that each declares.
func containers(pod *corev1.Pod) (all []objects.Container) {
	ports := make(map[string][]int32)
	for i := range pod.Spec.Containers {
		notePorts(ports, &pod.Spec.Containers[i])
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.ContainerID != "" {
			all = append(all, objects.Container{ID: c.ContainerID, Ports: ports[c.Name]})
		}
	}
	clear(ports)
	sidecars := make(map[string]bool)
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		sidecars[c.Name] = c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		notePorts(ports, c)
	}
	for _, c := range pod.Status.InitContainerStatuses {
		if c.ContainerID != "" && sidecars[c.Name] {
			all = append(all, objects.Container{ID: c.ContainerID, Ports: ports[c.Name], Sidecar: true})
		}
	}
	return all
}

func notePorts(ports map[string][]int32, of *corev1.Container) {
	for _, p := range of.Ports {
		ports[of.Name] = append(ports[of.Name], p.ContainerPort)
	}
}

// activePorts parses the annotation with the ports that a pod serves; nil if there is none.
func activePorts(annotations map[string]string) (ports []int32, fault *field.Error) {
	for _, name := range pool.ActivePorts {
		text, ok := annotations[name]
		if !ok {
			continue
		}
		ports = []int32{}
		for word := range strings.SplitSeq(text, ",") {
			n, err := strconv.ParseUint(strings.TrimSpace(word), 10, 16)
			if err != nil || n == 0 {
				return nil, field.Invalid(field.NewPath("metadata", "annotations"), text, name+" is a list of ports, such as 8000,8001")
			}
			ports = append(ports, int32(n))
		}
		return ports, nil
	}
	return nil, nil
}

// migrates returns until when a pod that is being deleted still serves, because its containers wait
// for control in their preStop hooks; zero if they do not. An API server's deletion timestamp is
// the end of the grace period.
func migrates(pod *corev1.Pod) time.Time {
	says, within, limited := strings.Cut(pod.Annotations[v1alpha1.PreStop], " ")
	if pod.DeletionTimestamp == nil || says != v1alpha1.PreStopMigrate {
		return time.Time{}
	}
	until := pod.DeletionTimestamp.Add(-v1alpha1.PreStopMargin)
	limit, err := time.ParseDuration(within)
	grace := pod.DeletionGracePeriodSeconds
	if !limited || err != nil || grace == nil { // an invalid limit is ignored
		return until
	}
	if by := pod.DeletionTimestamp.Add(limit - time.Duration(*grace)*time.Second); by.Before(until) {
		return by
	}
	return until
}

// ended reports whether all containers of a pod have ended and are not restarted.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// ready reports whether a pod may get new requests, and whether its node has been silent since it
// was last ready.
//
// When a node is silent for a while, Kubernetes' node lifecycle controller sets only the Ready
// condition of its pods to false: when the node died, and for every node after a longer outage of
// the API server. The kubelet sets both conditions, or a readiness gate is the reason
// (nodelifecycle's MarkPodsNotReady and kubelet/status, both of 1.36).
func ready(pod *corev1.Pod) (is, nodeSilent bool) {
	if pod.DeletionTimestamp != nil && migrates(pod).IsZero() || ended(pod) {
		return false, false
	}
	switch says(pod, corev1.PodReady) {
	case "", corev1.ConditionTrue:
		return true, false
	case corev1.ConditionFalse:
		silent := says(pod, corev1.ContainersReady) == corev1.ConditionTrue && len(closedGates(pod)) == 0
		return silent, silent
	}
	return false, false
}

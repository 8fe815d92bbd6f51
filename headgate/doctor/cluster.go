package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/control/events"
	"github.com/headgate/headgate/headgate/doctor/diagnosis"
	"github.com/headgate/headgate/internal/objects/kube"
)

// kinds are the kinds that must be there, with their status; optional ones need not.
var kinds = []struct {
	group, version, plural, kind string
	optional                     bool
}{
	{"inference.networking.k8s.io", "v1", "inferencepools", "InferencePool", false},
	{"inference.x-k8s.io", "v1alpha1", "llmroutes", "LLMRoute", false},
	{"inference.x-k8s.io", "v1alpha1", "models", "Model", false},
	{"inference.x-k8s.io", "v1alpha1", "vmodels", "VModel", false},
	{"inference.x-k8s.io", "v1alpha1", "poolsettings", "PoolSettings", false},
	{"inference.x-k8s.io", "v1alpha1", "endpointlists", "EndpointList", false},
	{"gateway.networking.k8s.io", "v1", "gateways", "Gateway", true},
	{"gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute", true},
}

// rights are the rights of control that its ClusterRoles grant, except those for single objects.
var rights = []struct{ group, resource, verbs string }{
	{"", "pods", "list watch"},
	{"", "services", "list watch"},
	{"discovery.k8s.io", "endpointslices", "list watch"},
	{"events.k8s.io", "events", "create patch"},
	{"gateway.networking.k8s.io", "gateways/status", "update"},
	{"gateway.networking.k8s.io", "httproutes", "list watch get"},
	{"inference.networking.k8s.io", "inferencepools", "list watch get"},
	{"inference.networking.k8s.io", "inferencepools/status", "update"},
	{"inference.x-k8s.io", "llmroutes", "list watch get"},
	{"inference.x-k8s.io", "llmroutes/status", "update"},
	{"inference.x-k8s.io", "models", "list watch create delete"},
	{"inference.x-k8s.io", "models/status", "patch"},
	{"inference.x-k8s.io", "vmodels/status", "patch"},
	{"inference.x-k8s.io", "poolsettings", "list watch"},
	{"inference.x-k8s.io", "endpointlists", "list watch"},
}

// cluster asks the API server. It adds conditions that are False to the facts.
func cluster(ctx context.Context, o options, f *diagnosis.Facts) *diagnosis.Cluster {
	config, err := kube.Connect(o.Kube.Config)
	if err != nil {
		return &diagnosis.Cluster{Err: err.Error()}
	}
	c := &diagnosis.Cluster{Server: config.Host}
	config.Timeout = timeout
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		c.Err = err.Error()
		return c
	}
	if _, err := api.Discovery().ServerVersion(); err != nil {
		c.Err = fmt.Sprintf("the API server %s does not answer: %v%s", config.Host, err, kube.HintFor(err))
		return c
	}
	for _, k := range kinds {
		path := fmt.Sprintf("/apis/%s/%s/%s", k.group, k.version, k.plural)
		text, err := api.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(ctx)
		switch {
		case apierrors.IsNotFound(err) && !k.optional:
			c.Missing = append(c.Missing, k.kind+" ("+k.group+"/"+k.version+")")
		case err == nil:
			f.Conditions = append(f.Conditions, falseConditions(k.kind, text)...)
		}
	}
	c.Forbidden, c.Unchecked = forbidden(ctx, api, o.account)
	return c
}

// forbidden returns the rights that an account, NAMESPACE/NAME, lacks, or why they are unknown.
func forbidden(ctx context.Context, api kubernetes.Interface, account string) (lacks []string, unchecked string) {
	namespace, name, _ := strings.Cut(account, "/")
	user := "system:serviceaccount:" + namespace + ":" + name
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
	for _, right := range rights {
		resource, sub, _ := strings.Cut(right.resource, "/")
		for verb := range strings.FieldsSeq(right.verbs) {
			to := &authorizationv1.ResourceAttributes{Group: right.group, Resource: resource, Subresource: sub, Verb: verb}
			var status authorizationv1.SubjectAccessReviewStatus
			review, err := api.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: to, User: user, Groups: groups},
			}, metav1.CreateOptions{})
			if apierrors.IsForbidden(err) { // as control itself, in its pod
				own, ownErr := api.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
					Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: to},
				}, metav1.CreateOptions{})
				if err = ownErr; err == nil {
					status = own.Status
				}
			} else if err == nil {
				status = review.Status
			}
			if err != nil {
				return nil, err.Error()
			}
			if !status.Allowed {
				lacks = append(lacks, strings.TrimSpace(verb+" "+right.resource+" "+right.group))
			}
		}
	}
	return lacks, ""
}

// conditioned is the part of an object that has conditions.
type conditioned struct {
	Conditions []metav1.Condition `json:"conditions"`
}

// falseConditions returns the conditions in a list of objects that are False: those of the objects,
// of their parents and of their listeners.
func falseConditions(kind string, list []byte) (all []admin.Condition) {
	var read struct {
		Items []struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
			Status   struct {
				conditioned
				Parents []struct {
					conditioned
					ParentRef struct{ Name string } `json:"parentRef"`
				} `json:"parents"`
				Listeners []struct {
					conditioned
					Name string `json:"name"`
				} `json:"listeners"`
			} `json:"status"`
		} `json:"items"`
	}
	if json.Unmarshal(list, &read) != nil {
		return nil
	}
	for _, item := range read.Items {
		add := func(of string, from conditioned) {
			for _, c := range from.Conditions {
				if c.Status == metav1.ConditionFalse && !events.Negative(c.Type) {
					all = append(all, admin.Condition{
						Kind: kind, Name: item.Metadata.Namespace + "/" + item.Metadata.Name, Of: of,
						Type: c.Type, Reason: c.Reason, Message: c.Message,
					})
				}
			}
		}
		add("", item.Status.conditioned)
		for _, p := range item.Status.Parents {
			add("parent "+p.ParentRef.Name, p.conditioned)
		}
		for _, l := range item.Status.Listeners {
			add("listener "+l.Name, l.conditioned)
		}
	}
	return all
}

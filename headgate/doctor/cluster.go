package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/events"
	"github.com/headgate/headgate/headgate/doctor/diagnosis"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/kube"
)

const (
	// pageSize is the number of objects in one answer of the API server.
	pageSize = 500
	// callRate is the number of calls each second to the API server.
	callRate = 200
)

// cluster asks the API server. It adds the conditions that are False to the facts.
func cluster(ctx context.Context, o options, f *diagnosis.Facts) *diagnosis.Cluster {
	config, err := kube.Connect(o.Kube.Config)
	if err != nil {
		return &diagnosis.Cluster{Err: err.Error()}
	}
	c := &diagnosis.Cluster{Server: config.Host}
	config.Timeout, config.QPS, config.Burst = timeout, callRate, callRate
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		c.Err = err.Error()
		return c
	}
	if _, err := api.Discovery().ServerVersion(); err != nil {
		c.Err = fmt.Sprintf("the API server %s does not answer: %v%s", config.Host, err, kube.HintFor(err))
		return c
	}
	own := make(owned)
	for _, k := range conditioned(o.Kube.Namespace) {
		switch read, err := list(ctx, api, k, o.Kube.Namespace, own); {
		case apierrors.IsNotFound(err) && k.Optional:
		case apierrors.IsNotFound(err):
			c.Missing = append(c.Missing, k.Kind+" ("+k.GroupVersion().String()+")")
		case err != nil:
			c.Unread = append(c.Unread, fmt.Sprintf("%s cannot be listed: %v", k.Plural(), err))
		default:
			f.Conditions = append(f.Conditions, read...)
		}
	}
	checkRights(ctx, api, o, c)
	return c
}

// conditioned returns the kinds of objects with conditions that control reads in a namespace; empty
// means in all namespaces. A GatewayClass comes before its Gateways, and these before their
// ListenerSets.
func conditioned(namespace string) []kinds.Kind {
	table := kinds.WithNetwork()
	if namespace != "" {
		table = kinds.All()
	}
	return slices.DeleteFunc(kinds.OfServers(table), func(k kinds.Kind) bool { return k.CRD() == "" })
}

// list returns the conditions that are False of all objects of a kind in the API server.
func list(ctx context.Context, api kubernetes.Interface, k kinds.Kind, namespace string, own owned) (all []admin.Condition, err error) {
	path := "/apis/" + k.GroupVersion().String() + "/"
	if namespace != "" && !k.ClusterScoped {
		path += "namespaces/" + namespace + "/"
	}
	var page struct {
		Metadata struct{ Continue string }
		Items    []json.RawMessage
	}
	for first := true; first || page.Metadata.Continue != ""; first = false {
		answer := api.CoreV1().RESTClient().Get().AbsPath(path+k.Resource.Resource).
			Param("limit", strconv.Itoa(pageSize)).Param("continue", page.Metadata.Continue).Do(ctx)
		if err := answer.Error(); err != nil {
			return nil, err
		}
		text, err := answer.Raw()
		if err != nil {
			return nil, err
		}
		page.Metadata.Continue, page.Items = "", nil
		if err := json.Unmarshal(text, &page); err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			all = append(all, own.falseConditions(k.Kind, item)...)
		}
	}
	return all, nil
}

// owned are the GatewayClasses and Gateways of Headgate. Objects of other controllers have
// conditions, too.
type owned map[objects.Object]bool

// falseConditions returns the conditions of an object, in JSON, that are False. It omits those of
// other controllers.
func (o owned) falseConditions(kind string, object json.RawMessage) []admin.Condition {
	var is struct {
		Metadata metav1.ObjectMeta
		Spec     struct {
			ControllerName, GatewayClassName string
			ParentRef                        struct{ Kind, Namespace, Name string }
		}
		Status map[string]any
	}
	if json.Unmarshal(object, &is) != nil {
		return nil
	}
	name, parent := objects.Name{Namespace: is.Metadata.Namespace, Name: is.Metadata.Name}, is.Spec.ParentRef
	ours := true
	switch kind {
	case objects.GatewayClassKind:
		ours = is.Spec.ControllerName == string(attach.Controller)
	case objects.GatewayKind:
		ours = o[objects.Object{Kind: objects.GatewayClassKind, Name: objects.Name{Name: is.Spec.GatewayClassName}}]
	case objects.ListenerSetKind:
		of := objects.Name{Namespace: cmp.Or(parent.Namespace, name.Namespace), Name: parent.Name}
		ours = o[objects.Object{Kind: objects.GatewayKind, Name: of}]
	}
	if !ours {
		return nil
	}
	of := objects.Object{Kind: kind, Name: name}
	if kind == objects.GatewayClassKind || kind == objects.GatewayKind {
		o[of] = true
	}
	for _, part := range []string{"parents", "ancestors"} {
		if all, ok := is.Status[part].([]any); ok {
			is.Status[part] = slices.DeleteFunc(all, func(entry any) bool {
				at, _ := entry.(map[string]any)
				by, _ := at["controllerName"].(string)
				return by != "" && by != string(attach.Controller)
			})
		}
	}
	var all []admin.Condition
	for _, c := range events.ConditionsOf(is.Status) {
		all = append(all, conditions.FalseOf(of, c.Place, []metav1.Condition{c.Condition})...)
	}
	return all
}

package doctor

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/headgate/doctor/diagnosis"
)

// controlAccount is the name of control's service account in manifests/base.
const controlAccount = "headgate-control"

// attaches is the ClusterRole that control needs only if it serves Gateways.
const attaches = "headgate-attaches"

// separator is between two objects of a manifest.
var separator = []byte("\n---\n")

// right permits some verbs for one resource, in one namespace or everywhere, for one name or all.
type right struct {
	verbs                            []string
	group, resource, namespace, name string
}

// String returns the right for people, such as "list, watch pods".
func (r right) String() string {
	text := strings.Join(r.verbs, ", ") + " " + r.resource
	if r.group != "" {
		text += "." + r.group
	}
	if r.name != "" {
		text += " " + r.name
	}
	if r.namespace != "" {
		text += " in " + r.namespace
	}
	return text
}

// needed returns the rights of control: those of the roles that manifests/base binds to its service
// account. Home is the namespace in which control runs. Reads is the only namespace that it reads;
// empty means all.
func needed(home, reads string) (all []right, err error) {
	type object struct {
		Kind     string
		Metadata metav1.ObjectMeta
		Rules    []rbacv1.PolicyRule
		RoleRef  rbacv1.RoleRef
		Subjects []rbacv1.Subject
	}
	roles := make(map[string][]rbacv1.PolicyRule)
	var bindings []object
	for text := range bytes.SplitSeq(slices.Concat(headgate.ReaderRolesYAML, separator, headgate.ControlRolesYAML), separator) {
		var o object
		if err := yaml.Unmarshal(text, &o); err != nil {
			return nil, err
		}
		switch o.Kind {
		case "Role", "ClusterRole":
			roles[o.Kind+" "+o.Metadata.Name] = o.Rules
		case "RoleBinding", "ClusterRoleBinding":
			if slices.ContainsFunc(o.Subjects, func(s rbacv1.Subject) bool { return s.Name == controlAccount }) {
				bindings = append(bindings, o)
			}
		}
	}
	for _, b := range bindings {
		namespace := home
		switch {
		case b.Kind == "RoleBinding":
		case b.RoleRef.Name == attaches && reads != "":
			continue
		default:
			namespace = reads
		}
		for _, rule := range roles[b.RoleRef.Kind+" "+b.RoleRef.Name] {
			all = append(all, rightsOf(rule, namespace)...)
		}
	}
	return all, nil
}

// rightsOf returns the rights of one rule of a role.
func rightsOf(rule rbacv1.PolicyRule, namespace string) (all []right) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, name := range names {
				all = append(all, right{rule.Verbs, group, resource, namespace, name})
			}
		}
	}
	return all
}

// checkRights sets the rights that control lacks, or why they are unknown.
func checkRights(ctx context.Context, api kubernetes.Interface, o options, c *diagnosis.Cluster) {
	namespace, name, _ := strings.Cut(o.account, "/")
	if _, err := api.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		c.NoAccount = o.account
		return
	}
	rights, err := needed(namespace, o.Kube.Namespace)
	if err != nil {
		c.Unchecked = err.Error()
		return
	}
	r := reviewer{
		api: api, user: "system:serviceaccount:" + namespace + ":" + name,
		groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
		self:   sync.OnceValues(func() (string, error) { return whoami(ctx, api) }),
	}
	lacks := make([]string, len(rights))
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.SetLimit(together)
	for i, right := range rights {
		tasks.Go(func() error {
			refused, err := r.refused(ctx, right)
			if right.verbs = refused; len(refused) > 0 {
				lacks[i] = right.String()
			}
			return err
		})
	}
	if err := tasks.Wait(); err != nil {
		c.Unchecked = err.Error()
		return
	}
	c.Forbidden = slices.DeleteFunc(lacks, func(text string) bool { return text == "" })
}

// reviewer asks an API server what a user may do.
type reviewer struct {
	api    kubernetes.Interface
	user   string
	groups []string
	self   func() (string, error) // the user that calls
}

// refused returns the verbs of a right that the user lacks.
func (r reviewer) refused(ctx context.Context, is right) (verbs []string, err error) {
	resource, sub, _ := strings.Cut(is.resource, "/")
	for _, verb := range is.verbs {
		allowed, err := r.allowed(ctx, &authorizationv1.ResourceAttributes{
			Group: is.group, Resource: resource, Subresource: sub, Verb: verb, Namespace: is.namespace, Name: is.name,
		})
		if err != nil {
			return nil, err
		}
		if !allowed {
			verbs = append(verbs, verb)
		}
	}
	return verbs, nil
}

func (r reviewer) allowed(ctx context.Context, to *authorizationv1.ResourceAttributes) (bool, error) {
	review, err := r.api.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: to, User: r.user, Groups: r.groups},
	}, metav1.CreateOptions{})
	if err == nil {
		return review.Status.Allowed, nil
	}
	if !apierrors.IsForbidden(err) {
		return false, err
	}
	// Every user may ask about itself, as control does in its pod.
	if self, selfErr := r.self(); selfErr != nil || self != r.user {
		return false, errors.Join(err, selfErr)
	}
	own, err := r.api.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: to},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return own.Status.Allowed, nil
}

// whoami returns the name of the user that calls the API server.
func whoami(ctx context.Context, api kubernetes.Interface) (string, error) {
	review, err := api.AuthenticationV1().SelfSubjectReviews().Create(ctx, new(authenticationv1.SelfSubjectReview), metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}

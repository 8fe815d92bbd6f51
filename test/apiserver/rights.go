package apiserver

import (
	"context"
	"net/http"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	rbac "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
)

// Rights compares the rights of the service accounts in a namespace with requests. unused are
// rights that no request needed. denied are requests that were denied and never allowed later: an
// API server that starts denies everything until it has read its rules. Both are sorted lists of
// texts such as "headgate-control: update leases headgate-control in headgate-system". Wildcards in
// roles are not supported.
func Rights(ctx context.Context, c *rest.Config, namespace string, requests []Request) (unused, denied []string, err error) {
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, nil, err
	}
	rights, err := granted(ctx, client.RbacV1(), namespace)
	if err != nil {
		return nil, nil, err
	}
	used, refused, allowed := make(map[right]bool), make(map[string]bool), make(map[string]bool)
	for _, r := range requests {
		account, ours := strings.CutPrefix(r.User.Name, "system:serviceaccount:"+namespace+":")
		if !ours || r.Object.Resource == "" {
			continue
		}
		is := right{
			account, r.Verb, r.Object.Group, strings.TrimSuffix(r.Object.Resource+"/"+r.Object.Subresource, "/"),
			r.Object.Namespace, r.Object.Name,
		}
		what := is.account + ": " + is.verb + " " + is.resource
		if r.Denied() {
			refused[what] = true
			continue
		}
		allowed[what] = true
		made := is // a patch that creates an object also needs the right to create it
		made.verb, made.name = "create", ""
		for _, may := range rights {
			if may.allows(is) || r.Verb == "patch" && r.Response.Code == http.StatusCreated && may.allows(made) {
				used[may] = true
			}
		}
	}
	for _, may := range rights {
		if !used[may] {
			unused = append(unused, may.String())
		}
	}
	for what := range refused {
		if !allowed[what] {
			denied = append(denied, what)
		}
	}
	slices.Sort(unused)
	slices.Sort(denied)
	return slices.Compact(unused), denied, nil
}

// right permits an account one verb for one resource. An empty namespace means all namespaces, and
// an empty name all objects.
type right struct{ account, verb, group, resource, namespace, name string }

func (r right) allows(is right) bool {
	return r.account == is.account && r.verb == is.verb && r.group == is.group && r.resource == is.resource &&
		(r.namespace == "" || r.namespace == is.namespace) && (r.name == "" || r.name == is.name)
}

func (r right) String() string {
	text := r.account + ": " + r.verb + " " + r.resource
	if r.name != "" {
		text += " " + r.name
	}
	if r.namespace != "" {
		text += " in " + r.namespace
	}
	return text
}

// granted returns all rights of the service accounts in a namespace.
func granted(ctx context.Context, client rbac.RbacV1Interface, namespace string) (all []right, _ error) {
	add := func(subjects []rbacv1.Subject, rules []rbacv1.PolicyRule, within string) {
		for _, s := range subjects {
			if s.Kind != rbacv1.ServiceAccountKind || s.Namespace != namespace {
				continue
			}
			for _, rule := range rules {
				all = append(all, rights(s.Name, rule, within)...)
			}
		}
	}
	everywhere, err := client.ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, b := range everywhere.Items {
		role, err := client.ClusterRoles().Get(ctx, b.RoleRef.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		add(b.Subjects, role.Rules, "")
	}
	here, err := client.RoleBindings(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, b := range here.Items {
		role, err := client.Roles(b.Namespace).Get(ctx, b.RoleRef.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		add(b.Subjects, role.Rules, b.Namespace)
	}
	return all, nil
}

// rights returns the rights that an RBAC rule grants to an account.
func rights(account string, rule rbacv1.PolicyRule, namespace string) (all []right) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					all = append(all, right{account, verb, group, resource, namespace, name})
				}
			}
		}
	}
	return all
}

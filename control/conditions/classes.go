package conditions

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/features"

	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// supported lists the features of Gateway API that Headgate supports, in any order. The conformance
// suite tests and reports each. Retries are not listed although they work: their field is not in
// the standard CRDs of 1.6.
var supported = []features.FeatureName{
	features.SupportBackendTLSPolicy,
	features.SupportBackendTLSPolicySANValidation,
	features.SupportGateway,
	features.SupportGatewayAddressEmpty,
	features.SupportGatewayBackendClientCertificate,
	features.SupportGatewayFrontendClientCertificateValidation,
	features.SupportGatewayFrontendClientCertificateValidationInsecureFallback,
	features.SupportGatewayHTTPListenerIsolation,
	features.SupportGatewayHTTPSListenerDetectMisdirectedRequests,
	features.SupportGatewayPort8080,
	features.SupportGatewayStaticAddresses,
	features.SupportListenerSet,
	features.SupportReferenceGrant,
	features.SupportGRPCRoute,
	features.SupportGRPCRouteNamedRouteRule,
	features.SupportHTTPRoute,
	features.SupportHTTPRoute303RedirectStatusCode,
	features.SupportHTTPRoute307RedirectStatusCode,
	features.SupportHTTPRoute308RedirectStatusCode,
	features.SupportHTTPRouteBackendProtocolH2C,
	features.SupportHTTPRouteBackendProtocolWebSocket,
	features.SupportHTTPRouteBackendRequestHeaderModification,
	features.SupportHTTPRouteBackendTimeout,
	features.SupportHTTPRouteCORS,
	features.SupportHTTPRouteHostRewrite,
	features.SupportHTTPRouteMethodMatching,
	features.SupportHTTPRouteNamedRouteRule,
	features.SupportHTTPRouteParentRefPort,
	features.SupportHTTPRoutePathRedirect,
	features.SupportHTTPRoutePathRewrite,
	features.SupportHTTPRoutePortRedirect,
	features.SupportHTTPRouteQueryParamMatching,
	features.SupportHTTPRouteRequestMirror,
	features.SupportHTTPRouteRequestMultipleMirrors,
	features.SupportHTTPRouteRequestPercentageMirror,
	features.SupportHTTPRouteRequestTimeout,
	features.SupportHTTPRouteResponseHeaderModification,
	features.SupportHTTPRouteSchemeRedirect,
}

// versions are the releases of Gateway API's CRDs that Headgate supports. Release 1.5 is the first
// with ListenerSets and ReferenceGrants in version v1.
var versions = []string{"v1.5", "v1.6"}

// classes adds the status of our GatewayClasses.
func (w *writer) classes() {
	var all []gatewayv1.FeatureName
	for _, f := range supported {
		all = append(all, gatewayv1.FeatureName(f))
	}
	slices.Sort(all)
	for i := range w.Network.Classes {
		c := &w.Network.Classes[i]
		if c.Spec.ControllerName != attach.Controller {
			continue
		}
		s := w.add(objects.GatewayClassKind, c)
		s.Features = all
		s.Used = slices.ContainsFunc(w.Attachments.Gateways, func(g *attach.Gateway) bool {
			return string(g.Spec.GatewayClassName) == c.Name
		})
		accepted := is(gatewayv1.GatewayClassConditionStatusAccepted, gatewayv1.GatewayClassReasonAccepted, "")
		if v := w.Attachments.Classes[c.Name].Refused; v != (attach.Verdict{}) {
			accepted = not(gatewayv1.GatewayClassConditionStatusAccepted, v.Reason, v.Message)
		}
		s.Conditions = append(s.Conditions, accepted)
		if w.Versions != nil {
			s.Conditions = append(s.Conditions, supportedVersion(w.Versions))
		}
	}
}

// PutFinalizer adds Gateway API's finalizer to a GatewayClass that Gateways use, so that deleting
// the class does not stop them, and removes it from other classes. It keeps other finalizers. It
// does not change other kinds, nor add the finalizer to a class that is being deleted, which API
// servers would reject.
func (s *Status) PutFinalizer(o metav1.Object) {
	const of = gatewayv1.GatewayClassFinalizerGatewaysExist
	are := o.GetFinalizers()
	switch has := slices.Contains(are, of); {
	case s.Object.Kind != objects.GatewayClassKind:
	case s.Used && !has && o.GetDeletionTimestamp() == nil:
		o.SetFinalizers(append(slices.Clone(are), of))
	case !s.Used && has:
		o.SetFinalizers(slices.DeleteFunc(slices.Clone(are), func(f string) bool { return f == of }))
	}
}

// supportedVersion is the condition SupportedVersion: whether Headgate supports all versions of the
// CRDs.
func supportedVersion(are []string) metav1.Condition {
	var unknown []string
	for _, v := range are {
		if !slices.ContainsFunc(versions, func(known string) bool { return v == known || strings.HasPrefix(v, known+".") }) {
			if v == "" {
				v = "without a version"
			}
			unknown = append(unknown, v)
		}
	}
	if len(unknown) > 0 {
		return not(gatewayv1.GatewayClassConditionStatusSupportedVersion, gatewayv1.GatewayClassReasonUnsupportedVersion,
			fmt.Sprintf("the CRDs of Gateway API are %s; Headgate supports %s, and others may not work",
				strings.Join(unknown, " and "), strings.Join(versions, " and ")))
	}
	return is(gatewayv1.GatewayClassConditionStatusSupportedVersion, gatewayv1.GatewayClassReasonSupportedVersion, "")
}

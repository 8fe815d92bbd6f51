package storage

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// Redact returns a URI without user information, query and fragment, for messages. It accepts any
// text.
func Redact(uri string) string {
	if i := strings.IndexAny(uri, "?#"); i >= 0 {
		uri = uri[:i]
	}
	scheme, rest, ok := strings.Cut(uri, "://")
	if !ok {
		return uri
	}
	host, _, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(host, '@'); i >= 0 {
		return scheme + "://" + host[i+1:] + rest[len(host):]
	}
	return uri
}

var (
	bucketName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`)
	// azureHost matches the hosts of Azure Blob Storage: of Microsoft's clouds, and of accounts
	// with a DNS zone. Nobody else can have a name below these.
	azureHost = regexp.MustCompile(`^([a-z0-9]{3,24})(-secondary)?\.` +
		`(z[0-9]{1,2}\.blob\.storage\.azure\.net|blob\.core\.(windows\.net|usgovcloudapi\.net|chinacloudapi\.cn))$`)
	accountName = regexp.MustCompile(`^[a-z0-9]{3,24}$`)
	hubRepo     = regexp.MustCompile(`^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$`)
	hubRevision = regexp.MustCompile(`^[A-Za-z0-9._/-]+$`)
	ociRepo     = regexp.MustCompile(`^([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$`)
	ociTag      = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	ociDigest   = regexp.MustCompile(`^[a-z0-9]+:[0-9a-f]{32,}$`)
)

// parseURI returns the source that a URI names, without credentials except those in the URI. ok is
// false if the text is no URI.
func parseURI(uri string) (s Source, ok bool, err error) {
	scheme, rest, ok := strings.Cut(uri, "://")
	if !ok || strings.ContainsAny(scheme, "/ ") {
		return Source{}, false, nil
	}
	s = Source{Unpack: true, Fields: map[string]string{}}
	switch scheme = strings.ToLower(scheme); scheme {
	case "s3", "gs", "pvc":
		s.Scheme = Scheme(scheme)
		s.Bucket, s.Path, _ = strings.Cut(rest, "/")
		err = s.inBucket(uri)
	case "http", "https":
		err = s.parseURL(uri)
	case "hf":
		err = s.parseHub(uri, rest)
	case "oci":
		err = s.parseImage(uri, rest)
	default:
		err = faulty("the scheme of %s is not supported; use s3://, gs://, https://, http://, pvc://, hf:// or oci://", quote(uri))
	}
	return s, true, err
}

// inBucket checks the bucket and the path, and sets the canonical URI. shown is what messages show.
func (s *Source) inBucket(shown string) error {
	s.Path = strings.TrimLeft(s.Path, "/")
	if strings.ContainsAny(s.Path, "?#") {
		return &Error{quote(shown) + " has a query or fragment, which this kind of storage does not have; remove it"}
	}
	if !bucketName.MatchString(s.Bucket) {
		what := map[Scheme]string{S3: "bucket", GCS: "bucket", Claim: "PersistentVolumeClaim", Azure: "container"}[s.Scheme]
		return faulty("%s names no valid %s; correct the source", quote(shown), what)
	}
	if err := inside(s.Path, shown); err != nil {
		return err
	}
	s.URI = string(s.Scheme) + "://" + s.Bucket
	if s.Scheme == Azure {
		s.URI = s.Fields["account_url"] + "/" + s.Bucket
	}
	if s.Path != "" {
		s.URI += "/" + s.Path
	}
	return nil
}

// inside returns an error if a path leaves its folder, or has characters that no name has.
func inside(path, shown string) error {
	for element := range strings.SplitSeq(path, "/") {
		if element == ".." || element == "." {
			return &Error{quote(shown) + ` has an element ".." or "."; write the path without it`}
		}
	}
	if strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
		return &Error{quote(shown) + " has a control character or a backslash in its path; rename the files"}
	}
	return nil
}

// parseURL reads the URL of a web server, or of Azure Blob Storage.
func (s *Source) parseURL(uri string) error {
	u, err := url.Parse(uri)
	if err != nil || u.Host == "" || u.Opaque != "" || u.Hostname() == "" {
		return &Error{quote(uri) + " is no valid URL; correct the source"}
	}
	if err := inside(u.Path, uri); err != nil {
		return err
	}
	s.Scheme = Web
	u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	if port := u.Port(); port == "443" && u.Scheme == "https" || port == "80" && u.Scheme == "http" {
		u.Host = strings.TrimSuffix(u.Host, ":"+port)
	}
	query := u.RawQuery
	if u.User != nil {
		s.Fields["user"] = u.User.Username()
		s.Fields["password"], _ = u.User.Password()
	}
	u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
	if u.Scheme == "https" && azureHost.MatchString(u.Host) {
		s.Scheme = Azure
		s.Fields["account_url"] = "https://" + u.Host
		if query != "" {
			s.Fields["sas"] = query
		}
		s.Bucket, s.Path, _ = strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
		return s.inBucket(uri)
	}
	if query != "" {
		s.Fields["query"] = query
	}
	s.Path, s.URI = u.String(), u.String()
	return nil
}

func (s *Source) parseHub(uri, rest string) error {
	s.Scheme = Hub
	revised := false
	s.Bucket, s.Revision, revised = strings.Cut(strings.TrimSuffix(rest, "/"), ":")
	if !hubRepo.MatchString(s.Bucket) || revised && !hubRevision.MatchString(s.Revision) {
		return &Error{quote(uri) + " names no repository of the Hub; write hf://OWNER/REPO or hf://OWNER/REPO:REVISION"}
	}
	if err := inside(s.Bucket+"/"+s.Revision, uri); err != nil {
		return err
	}
	s.URI = "hf://" + s.Bucket
	if revised {
		s.URI += ":" + s.Revision
	}
	return nil
}

func (s *Source) parseImage(uri, rest string) error {
	s.Scheme = OCI
	valid := true
	separator := ""
	if repo, digest, ok := strings.Cut(rest, "@"); ok {
		valid = ociDigest.MatchString(digest)
		if i := tagColon(repo); i >= 0 {
			repo = repo[:i] // a digest makes the tag a comment
		}
		s.Bucket, s.Revision, separator = repo, digest, "@"
	} else if i := tagColon(rest); i >= 0 {
		s.Bucket, s.Revision, separator = rest[:i], rest[i+1:], ":"
		valid = ociTag.MatchString(s.Revision)
	} else {
		s.Bucket = rest
	}
	if !valid || !ociRepo.MatchString(s.Bucket) {
		return &Error{quote(uri) + " names no image; write oci://REGISTRY/REPO:TAG or oci://REGISTRY/REPO@DIGEST"}
	}
	s.URI = "oci://" + s.Bucket + separator + s.Revision
	return nil
}

// tagColon returns the index of the colon before the tag of an image, or -1.
func tagColon(image string) int {
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		return i
	}
	return -1
}

// quote returns a URI for messages: without secrets, in quotes.
func quote(uri string) string { return fmt.Sprintf("%q", Redact(uri)) }

// origin returns the scheme, host and port of a URL; empty if it is none. Two URLs of one origin
// are at one server.
func origin(text string) string {
	s := Source{Fields: map[string]string{}}
	if err := s.parseURL(text); err != nil {
		return ""
	}
	address := s.Path
	if s.Scheme == Azure {
		address = s.Fields["account_url"]
	}
	scheme, rest, _ := strings.Cut(address, "://")
	host, _, _ := strings.Cut(rest, "/")
	return scheme + "://" + host
}

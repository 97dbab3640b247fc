package objstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
)

// explain turns a service error into what, where and what to do. The SDK's own text
// fills a screen and may hold the request's address, so only its code is kept.
func (s *blobStore) explain(verb, key string, err error) error {
	var resp *azcore.ResponseError
	if errors.As(err, &resp) {
		err = s.answer(verb, resp.StatusCode, bloberror.Code(resp.ErrorCode))
	} else {
		err = s.noAnswer(err)
	}
	return fmt.Errorf("objstore: %s %s: %w", verb, s.url(key), err)
}

func (s *blobStore) answer(verb string, status int, code bloberror.Code) error {
	switch {
	case code == bloberror.ContainerNotFound:
		return fmt.Errorf("there is no container %q: %w", s.place.container, ErrNotFound)
	case status == http.StatusNotFound:
		return ErrNotFound
	case status == http.StatusPreconditionFailed && (code == bloberror.ConditionNotMet || code == ""):
		return ErrChanged
	case code == bloberror.BlobArchived || code == bloberror.BlobBeingRehydrated:
		return fmt.Errorf("it is in the archive tier (%s); set its tier to Hot or Cool and wait until that is done", code)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fmt.Errorf("access denied (%s); %s", orStatus(code, status), s.remedy(verb, status, code))
	case status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests:
		return fmt.Errorf("the service turned away every try (%s): it is busy, or the account's limit is reached; run it again later", orStatus(code, status))
	}
	return fmt.Errorf("the service answered %d %s", status, orStatus(code, status))
}

func orStatus(code bloberror.Code, status int) string {
	if code == "" {
		return http.StatusText(status)
	}
	return string(code)
}

// remedy says what to do about a refusal, which depends on how the request was signed.
func (s *blobStore) remedy(verb string, status int, code bloberror.Code) string {
	role, rights := "Storage Blob Data Reader", "read and list (sp=rl)"
	if verb == "put" {
		role, rights = "Storage Blob Data Contributor", "create and write (sp=cw)"
	}
	broken := status == http.StatusUnauthorized || code == bloberror.AuthenticationFailed || code == bloberror.InvalidAuthenticationInfo
	switch {
	case code == "KeyBasedAuthenticationNotPermitted":
		return "the account takes no keys nor tokens signed with them; use an Azure identity, without " + s.login.from
	case code == bloberror.AuthorizationSourceIPMismatch, code == bloberror.AuthorizationProtocolMismatch:
		return "the SAS token is for other addresses or another protocol: make one for this machine"
	case s.login.sas != "" && broken:
		return fmt.Sprintf("the SAS token has expired or is not valid: make a new one%s (it is that of %s)", s.ends(), s.login.from)
	case s.login.sas != "" && code != bloberror.AuthorizationFailure:
		return fmt.Sprintf("the SAS token of %s must be for this container and allow %s", s.login.from, rights)
	case s.login.key != nil && broken:
		return fmt.Sprintf("the key in %s is not one of account %q, or this machine's clock is wrong", s.login.from, s.place.account)
	case s.login.token != nil && broken:
		return "the identity's token is not taken; if the account belongs to another tenant, set AZURE_TENANT_ID to it"
	case s.login.token != nil && code == bloberror.AuthorizationPermissionMismatch:
		return fmt.Sprintf("the identity needs the role %q on the container or its account", role)
	}
	// AuthorizationFailure is most often the firewall, whoever asks.
	return fmt.Sprintf("the account's network rules must let this machine in, and an identity needs the role %q, a SAS token the permissions %s", role, rights)
}

// ends says until when the SAS token is good, as it says itself.
func (s *blobStore) ends() string {
	values, err := url.ParseQuery(s.login.sas)
	if err != nil || values.Get("se") == "" {
		return ""
	}
	return fmt.Sprintf("; it says that it ends %s", values.Get("se"))
}

// noAnswer is an error that is not the service's: no login, no connection, no host, or
// a source that could not be read.
func (s *blobStore) noAnswer(err error) error {
	var dns *net.DNSError
	var login loginError
	var address *url.Error
	switch {
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.As(err, &dns) && dns.IsNotFound:
		return s.scrub(fmt.Errorf("host %s is not known; is %q the account's name, and does the network's DNS serve it", dns.Name, s.place.account))
	case errors.As(err, &login):
		return s.scrub(fmt.Errorf("no Azure identity to log in with, and no key or SAS token for account %q in the environment: %s", s.place.account, oneLine(login.error)))
	case errors.As(err, &address):
		err = address.Err // its text has the address with the SAS token
	}
	return s.scrub(err)
}

// scrub is the last line: an error whose text holds a secret all the same loses it,
// and with it what it wraps.
func (s *blobStore) scrub(err error) error {
	text := err.Error()
	for _, secret := range s.login.secrets {
		text = strings.ReplaceAll(text, secret, "…")
	}
	if text != err.Error() {
		return errors.New(text)
	}
	return err
}
